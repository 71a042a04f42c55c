"""HTTP/2 by hand, for good and hostile clients: sends frames exactly as given, and gRPC's calls on
top.

Parses only the daemon's responses: no Huffman code in headers except in binary ones, which are
ignored.
"""
import dataclasses
import socket
import ssl
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 0x20
WINDOW = 1 << 20

# RFC 7541, appendix A: names, and the values that the daemon may use.
STATIC = [(":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"), (":scheme", "http"),
          (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
          (":status", "404"), (":status", "500"), ("accept-charset", ""), ("accept-encoding", "gzip, deflate")]
STATIC += [(name, "") for name in """accept-language accept-ranges accept access-control-allow-origin age allow authorization
    cache-control content-disposition content-encoding content-language content-length content-location content-range content-type
    cookie date etag expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified link
    location max-forwards proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie
    strict-transport-security transfer-encoding user-agent vary via www-authenticate""".split()]


class Gone(Exception):
    """The connection has ended; its text says how."""


def integer(value, bits, first=0):
    """RFC 7541, section 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def header(name, value):
    """A literal without indexing."""
    name, value = name.encode(), value.encode()
    return b"\0" + integer(len(name), 7) + name + integer(len(value), 7) + value


class HeaderReader:
    """Decodes header blocks of one connection."""

    def __init__(self):
        self._dynamic = []

    def read(self, block):
        headers, at = {}, 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = self._integer(block, at, 7)
                name, value = self._entry(index)
            elif first & 0xE0 == 0x20:
                _, at = self._integer(block, at, 5)
                continue
            else:
                indexed = first & 0x40
                index, at = self._integer(block, at, 6 if indexed else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = self._text(block, at)
                value, at = self._text(block, at)
                if indexed:
                    self._dynamic.insert(0, (name, value))
            headers[name] = value
        return headers

    def _entry(self, index):
        return STATIC[index - 1] if index <= len(STATIC) else self._dynamic[index - 1 - len(STATIC)]

    @staticmethod
    def _integer(block, at, bits):
        most = (1 << bits) - 1
        value, at = block[at] & most, at + 1
        if value < most:
            return value, at
        shift = 0
        while True:
            value, shift, more = value + ((block[at] & 127) << shift), shift + 7, block[at] & 128
            at += 1
            if not more:
                return value, at

    def _text(self, block, at):
        huffman = block[at] & 0x80
        length, at = self._integer(block, at, 7)
        text = "" if huffman else block[at:at + length].decode(errors="replace")
        return text, at + length


@dataclasses.dataclass
class Answer:
    """Results of a call: its messages, the arrival of each, and its status (a number; None: the
    connection ended before)."""
    messages: list = dataclasses.field(default_factory=list)
    times: list = dataclasses.field(default_factory=list)
    status: int | None = None
    error: str = ""


def connect(address, tls=None, timeout=60, source=None):
    """A socket; `tls`: an SSLContext; `source`: the address to connect from."""
    host, port = address.rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), timeout=timeout, source_address=source and (source, 0))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")


class Connection:
    """For one thread. Raises Gone or OSError when it ends."""

    def __init__(self, address, tls=None, timeout=60, source=None):
        self.socket = connect(address, tls, timeout, source)
        self._secure, self._buffer, self._next, self._headers = tls is not None, b"", 1, HeaderReader()
        settings = struct.pack(">HI", 4, WINDOW)
        self.send(PREFACE, self.frame(SETTINGS, 0, 0, settings), self.frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def abort(self):
        """Ends it like a crashing machine: with RST, whatever is in flight."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    @staticmethod
    def frame(kind, flags, stream, payload=b""):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def read_frame(self):
        head = self._take(9)
        return head[3], head[4], struct.unpack(">I", head[5:])[0] & 0x7FFFFFFF, self._take(int.from_bytes(head[:3], "big"))

    def next_stream(self):
        self._next += 2
        return self._next - 2

    def request_fields(self, path, token=None, more=()):
        fields = [(":method", "POST"), (":scheme", "https" if self._secure else "http"), (":path", path), (":authority", "localhost"),
                  ("te", "trailers"), ("content-type", "application/grpc")]
        if token is not None:
            fields.append(("authorization", "Bearer " + token))
        return [*fields, *more]

    def request_headers(self, path, token=None, more=()):
        return b"".join(header(name, value) for name, value in self.request_fields(path, token, more))

    def start(self, path, message, token=None, more=()):
        """Sends a call; returns its stream."""
        stream, block = self.next_stream(), self.request_headers(path, token, more)
        parts = [block[at:at + 16384] for at in range(0, len(block), 16384)]
        self.send(*[self.frame(CONTINUATION if i else HEADERS, END_HEADERS if i == len(parts) - 1 else 0, stream, part)
                    for i, part in enumerate(parts)])
        body, flags = struct.pack(">BI", 0, len(message)) + message, 0
        # More than 64 kB would have to wait for the server's window.
        while not flags & END_STREAM:
            part, body = body[:16384], body[16384:]
            flags = END_STREAM if not body else 0
            self.send(self.frame(DATA, flags, stream, part))
        return stream

    def call(self, path, message, token=None, on_message=None, more=()):
        """Runs one call to its end, on a connection without other calls. `on_message` may return
        True to leave."""
        return self.read(self.start(path, message, token, more), on_message)

    def read(self, stream, on_message=None):
        answer, body, block = Answer(), b"", b""
        while True:
            kind, flags, on, payload = self.read_frame()
            if kind == SETTINGS and not flags & ACK:
                self.send(self.frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self.send(self.frame(PING, ACK, 0, payload))
            elif kind == GOAWAY and struct.unpack(">I", payload[4:8])[0] != 0:
                raise Gone("GOAWAY " + payload[8:].decode(errors="replace"))
            elif kind == RST_STREAM and on == stream:
                answer.status, answer.error = 1, f"RST_STREAM {struct.unpack('>I', payload)[0]}"
                return answer
            elif kind in (HEADERS, CONTINUATION):
                block += payload[5:] if flags & PRIORITY and kind == HEADERS else payload
                if flags & END_HEADERS:
                    headers, block = self._headers.read(block), b""
                    if on == stream and "grpc-status" in headers:
                        answer.status, answer.error = int(headers["grpc-status"]), headers.get("grpc-message", "")
                        return answer
            elif kind == DATA:
                self._give_back(on, len(payload), flags & END_STREAM)
                body += payload if on == stream else b""
                while len(body) >= 5 and len(body) >= 5 + (length := struct.unpack(">I", body[1:5])[0]):
                    answer.messages.append(body[5:5 + length])
                    answer.times.append(time.monotonic())
                    body = body[5 + length:]
                    if on_message is not None and on_message(answer.messages[-1]):
                        self.send(self.frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))
                        answer.status = 1
                        return answer

    def _give_back(self, stream, size, ended):
        if size == 0:
            return
        update = struct.pack(">I", size)
        self.send(self.frame(WINDOW_UPDATE, 0, 0, update), b"" if ended else self.frame(WINDOW_UPDATE, 0, stream, update))

    def _take(self, size):
        while len(self._buffer) < size:
            try:
                piece = self.socket.recv(65536)
            except ssl.SSLError as error:
                raise Gone(str(error)) from error
            if not piece:
                raise Gone("closed")
            self._buffer += piece
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


def fields_of(message):
    """(number, value) of a protobuf message: a number, or the bytes of a length-delimited field."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(tag & 7) or varint()
            yield tag >> 3, message[at:at + size]
            at += size


def tokens_of(message):
    """The ids of a hydrant.v1.GenerateResponse that is a Delta."""
    ids = []
    for number, value in fields_of(message):
        if number != 3:
            continue
        for inner, packed in fields_of(value):
            if inner == 2:
                value = 0
                shift = 0
                for byte in packed if isinstance(packed, bytes) else bytes([packed]):
                    value |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        ids.append(value)
                        value = shift = 0
    return ids
