"""What strangers and bad tenants do to a port. Each attack is a function of a target and a time to end, and counts what it met with;
ATTACKS says which of that is right."""
import collections
import dataclasses
import itertools
import multiprocessing
import os
import random
import socket
import ssl
import struct
import threading
import time

import asking
import http2
from http2 import Connection, Gone

STRUCTURED = 'text: "x" stopping {{ max_tokens: 4 }} structured_output {{ {form}: "{value}" }}'
SOURCE = "127.0.0.2"  # another than the good clients'
PATIENCE = 0.3  # seconds for the server to take what was sent to it
CODES = {0: "OK", 3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE", 16: "UNAUTHENTICATED"}


@dataclasses.dataclass
class Target:
    address: str
    authority: object  # of daemon.py
    token: str

    def socket(self, tls=None):
        return http2.connect(self.address, tls, timeout=30, source=SOURCE)

    def connection(self, timeout=30):
        return Connection(self.address, self.authority.context("client"), timeout, SOURCE)


def closed_or(reader):
    """How a connection ends that the server is to end: reads until it does."""
    try:
        while reader():
            pass
        return "closed"
    except (Gone, ConnectionError, ssl.SSLError):
        return "closed"
    except TimeoutError:
        return "left open"


def garbage(target, until):
    """Bytes that are nothing."""
    met, chance = collections.Counter(), random.Random(1)
    while time.monotonic() < until:
        with target.socket() as plain:
            try:
                plain.sendall(chance.randbytes(chance.choice([1, 24, 1000, 20000])))
                plain.shutdown(socket.SHUT_WR)
            except OSError:
                met["closed"] += 1
                continue
            met[closed_or(lambda s=plain: s.recv(4096))] += 1
    return met


def hello_bytes(target):
    """The first flight of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = target.authority.context("client").wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def half_open(target, until, first=b""):
    """Very many connections that say nothing more."""
    met, held = collections.Counter(), []
    try:
        while time.monotonic() < until:
            if len(held) < 500:
                held.append(target.socket())
                held[-1].sendall(first)
                met["opened"] += 1
            else:
                time.sleep(0.1)
        # In this time the server has to have lost its patience with all of them.
        for plain in held:
            plain.settimeout(20)
            met[closed_or(lambda s=plain: s.recv(4096))] += 1
    finally:
        for plain in held:
            plain.close()
    return met


def half_handshake(target, until):
    """Connections that begin a TLS handshake and never end it."""
    return half_open(target, until, hello_bytes(target)[:-20])


def refused_handshake(target, until, name, alpn="h2"):
    met, context = collections.Counter(), target.authority.context(name, alpn)
    while time.monotonic() < until:
        try:
            with target.socket(context) as tls:
                tls.sendall(http2.PREFACE + Connection.frame(http2.SETTINGS, 0, 0))
                # TLS 1.3: the client is done before the server has looked at its certificate.
                met["let in" if tls.recv(1) else "closed"] += 1
        except (ssl.SSLError, ConnectionError):
            met["closed"] += 1
    return met


def wrong_alpn(target, until):
    """A web browser's protocol."""
    return refused_handshake(target, until, "client", "http/1.1")


def expired_certificate(target, until):
    return refused_handshake(target, until, "expired")


def no_certificate(target, until):
    return refused_handshake(target, until, None)


def has_ended(connection):
    """Whether the server has ended it, which one that still sends may not have noticed."""
    connection.socket.settimeout(0.0)
    try:
        while connection.socket.recv(1 << 16):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        pass
    return True


def send_frames(connection, until, frames_of, reads, met):
    """Without end over one connection: how it ends."""
    while time.monotonic() < until:
        frames = frames_of(connection)
        connection.socket.settimeout(PATIENCE)
        try:
            connection.send(*frames)
        except TimeoutError:
            return "closed" if has_ended(connection) else "held back"
        met["frames"] += len(frames)
        if reads and has_ended(connection):
            return "closed"
    return "left"


def flood(target, until, frames_of, reads=True, is_ended=True):
    """Frames without end, over another connection as soon as one is closed, or takes no more; `is_ended`: until one was closed at least."""
    met = collections.Counter()
    while time.monotonic() < (end := until if met["closed"] or not is_ended else until + 20):
        try:
            with target.connection() as connection:
                met[send_frames(connection, end, frames_of, reads, met)] += 1
        except (Gone, OSError):
            met["closed"] += 1
    return met


def rapid_reset(target, until, token):
    """CVE-2023-44487: calls that are taken back at once. gRPC 1.51 has nothing against it: each costs it 30 kB until it comes to end it, which
    it does not while more come."""
    def frames(connection):
        headers, out = connection.request_headers(asking.GENERATE, token), []
        for _ in range(100):
            stream = connection.next_stream()
            out += [Connection.frame(http2.HEADERS, http2.END_HEADERS, stream, headers),
                    Connection.frame(http2.RST_STREAM, 0, stream, struct.pack(">I", 8))]
        return out
    return flood(target, until, frames)


def open_streams(target, until):
    """Calls that never send their message."""
    def frames(connection):
        time.sleep(0.01)
        headers = connection.request_headers(asking.GENERATE, target.token)
        return [Connection.frame(http2.HEADERS, http2.END_HEADERS, connection.next_stream(), headers) for _ in range(100)]
    return flood(target, until, frames)


def short_calls(connection, token, count):
    """Calls without messages in 16 bytes each: the server keeps the first one's headers in its table (RFC 7541, section 2.3.2)."""
    fields = connection.request_fields(asking.GENERATE, token)
    first = b"".join(b"\x40" + http2.header(name, value)[1:] for name, value in fields)
    later = bytes(0x80 | 62 + i for i in reversed(range(len(fields))))
    return [Connection.frame(http2.HEADERS, http2.END_HEADERS, connection.next_stream(), later if i else first) for i in range(count)]


def many_connections(target, until):
    """Opens connections as fast as possible from eight threads, each with 500 calls that never send their message, which is within the
    limit of one connection. A thread waits where the server holds its new connection back."""
    met, held, lock = collections.Counter(), [], threading.Lock()

    def connect():
        while time.monotonic() < until:
            try:
                connection = target.connection(timeout=2)
                connection.send(*short_calls(connection, target.token, 500))
            except TimeoutError:
                what = "held back"
            except (Gone, OSError):
                what = "closed"
            else:
                what = "opened"
                held.append(connection)
            with lock:
                met[what] += 1

    threads = [threading.Thread(target=connect) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in held:
        met["closed"] += has_ended(connection)
        connection.close()
    return met


def pings(target, until):
    return flood(target, until, lambda _: [Connection.frame(http2.PING, 0, 0, b"12345678")] * 500)


def pings_unread(target, until):
    """CVE-2019-9512: answers that nobody reads pile up."""
    return flood(target, until, lambda _: [Connection.frame(http2.PING, 0, 0, b"12345678")] * 500, reads=False, is_ended=False)


def settings_unread(target, until):
    """CVE-2019-9515: the same with SETTINGS."""
    return flood(target, until, lambda _: [Connection.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 3, 100))] * 500, reads=False, is_ended=False)


def endless_headers(target, until, knows_limit):
    """CVE-2024-27316: headers that are continued for ever, by a client that has said that it knows how long they may be, or has not.
    CVE-2023-33953: gRPC 1.51 measures each frame by itself, and keeps them all."""
    part = http2.header("x-more", "x" * 8000)

    def frames(connection):
        if connection.next_stream() > 1:
            return [Connection.frame(http2.CONTINUATION, 0, 1, part)] * 16
        if knows_limit:
            connection.read_frame()
        acknowledged = Connection.frame(http2.SETTINGS, http2.ACK, 0) if knows_limit else b""
        return [acknowledged, Connection.frame(http2.HEADERS, 0, 1, connection.request_headers(asking.GENERATE, target.token))]
    return flood(target, until, frames)


def calls(target, until, token, message_of, more=(), least=1):
    """At least so many, however long they take."""
    met, connection = collections.Counter(), None
    while time.monotonic() < until or met.total() < least:
        try:
            connection = connection or target.connection()
            status = connection.call(asking.GENERATE, message_of(), token, more=more).status
            met[CODES.get(status, f"status {status}")] += 1
        except (Gone, OSError):
            met["closed"] += 1
            connection = None
    return met


def long_headers(target, until):
    """A connection's first call may pass: gRPC keeps the limit from when its client has said that it knows it, and at one call over it
    ends the connection."""
    message = asking.generate(max_tokens=1)
    return calls(target, until, target.token, lambda: message, [("x-long", "x" * 60000)])


def wrong_tokens(target, until):
    message = asking.generate(max_tokens=1)
    return calls(target, until, "wrong", lambda: message)


def no_messages(target, until):
    """Bytes that are no request, and a prompt that is no UTF-8, with a token."""
    chance = random.Random(2)
    return calls(target, until, target.token, lambda: chance.choice([b"\x0a\xff\xff\xff\xff\x7f" + chance.randbytes(50), b"\x1a\2\xff\xfe"]))


def exploding_structures(target, until):
    """Schemas, expressions and grammars that are small and ask for more than there is."""
    nested = '{"a":' * 3000 + "{}" + "}" * 3000
    wide = '{"type":"object","properties":{' + ",".join(f'"k{i}":{{"enum":["{"x" * 50}{i}"]}}' for i in range(2000)) + "}}"
    endless = '{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/a"}]},"b":{"$ref":"#/$defs/a"}}}'
    powers = '{"$ref":"#/$defs/d0","$defs":{' + ",".join(
        f'"d{i}":{{"type":"object","properties":{{"a":{{"$ref":"#/$defs/d{i + 1}"}},"b":{{"$ref":"#/$defs/d{i + 1}"}}}}}}' for i in range(40)
    ) + ',"d40":{"type":"null"}}}'
    cases = [("json_schema", nested), ("json_schema", wide), ("json_schema", endless), ("json_schema", powers),
             ("json_schema", '{"type":"array","minItems":1000000000}'), ("json_schema", '{"type":"string","pattern":"(a{1,999}){1,999}"}'),
             ("regex", "(((a{1,1000}){1,1000}){1,1000}){1,1000}"), ("regex", "(a*)*" * 500), ("regex", "(" * 5000 + "a" + ")" * 5000),
             ("regex", "[a-z]{1000000000}"), ("grammar", "root ::= root root"), ("grammar", "root ::= " + "(" * 20000),
             ("grammar", "root ::= a{1,100000000}\\na ::= [a-z]{1,100000}")]
    messages = [asking.encode("GenerateRequest", STRUCTURED.format(form=form, value=value.replace('"', '\\"'))) for form, value in cases]
    every = itertools.cycle(messages)
    return calls(target, until, target.token, lambda: next(every), least=len(messages))


@dataclasses.dataclass
class Attack:
    run: object
    right: set      # what it may meet with
    must: str = ""  # and has to
    memory: int = 192 << 20  # bytes that the daemon may grow by during the attack


FLOODED = {"frames", "held back", "closed", "left"}
ATTACKS = {
    "garbage": Attack(garbage, {"closed"}, "closed"),
    "half-open connections": Attack(half_open, {"opened", "closed"}, "closed"),
    "half-done handshakes": Attack(half_handshake, {"opened", "closed"}, "closed"),
    "wrong ALPN": Attack(wrong_alpn, {"closed"}, "closed"),
    "expired certificate": Attack(expired_certificate, {"closed"}, "closed"),
    "no certificate": Attack(no_certificate, {"closed"}, "closed"),
    "pings, answers unread": Attack(pings_unread, FLOODED),
    "settings, answers unread": Attack(settings_unread, FLOODED),
    "long headers": Attack(long_headers, {"RESOURCE_EXHAUSTED", "closed", "OK"}, "RESOURCE_EXHAUSTED"),
    "wrong tokens": Attack(wrong_tokens, {"UNAUTHENTICATED"}, "UNAUTHENTICATED"),
    "no messages": Attack(no_messages, {"INVALID_ARGUMENT"}, "INVALID_ARGUMENT"),
    "exploding structures": Attack(exploding_structures, {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}, "INVALID_ARGUMENT"),
    # What gRPC 1.51 does not bound, and server/net/connection_guard.h does. Last: what they leave in the heap would hide what others take.
    "streams without messages": Attack(open_streams, FLOODED, "closed"),
    "many connections without messages": Attack(many_connections, {"opened", "held back", "closed"}, "opened", 512 << 20),
    "pings": Attack(pings, FLOODED, "closed"),
    "rapid resets": Attack(lambda target, until: rapid_reset(target, until, target.token), FLOODED, "closed"),
    "rapid resets, no token": Attack(lambda target, until: rapid_reset(target, until, None), FLOODED, "closed"),
    "endless headers": Attack(lambda target, until: endless_headers(target, until, True), FLOODED, "closed"),
    "endless headers, no limit known": Attack(lambda target, until: endless_headers(target, until, False), FLOODED, "closed"),
}


def problems_of(name, met):
    """What an attack met with and should not have, in words."""
    attack = ATTACKS[name]
    found = [f"{name}: met with '{what}' x{times}" for what, times in met.items() if what not in attack.right]
    if attack.must and not met.get(attack.must):
        found.append(f"{name}: never met with '{attack.must}'")
    return found


class Running:
    """An attack in a process of its own, so that its work is not its victims' clock's."""

    def __init__(self, name, target, seconds):
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=self._run, args=(name, target, seconds, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @staticmethod
    def _run(name, target, seconds, pipe):
        os.nice(5)  # it has the same cores as the daemon, which it would not have otherwise
        pipe.send(ATTACKS[name].run(target, time.monotonic() + seconds))

    def running(self):
        return self._process.is_alive() and not self._ours.poll()

    def result(self, timeout):
        """What it met with."""
        try:
            met = self._ours.recv() if self._ours.poll(timeout) else collections.Counter({"no end": 1})
        except EOFError:
            met = collections.Counter({"an error of its own": 1})
        self._process.terminate()
        self._process.join()
        return met
