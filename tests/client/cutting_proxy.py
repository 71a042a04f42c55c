"""A TCP relay that cuts the first connections, each after a number of bytes from the server; later ones are not cut."""
import contextlib
import socket
import threading


class CuttingProxy:
    """Ends with close(). `cuts` counts the connections cut, `relayed` the bytes from the server over all connections."""

    def __init__(self, server, cut_after=()):
        host, port = server.rsplit(":", 1)
        self._server = (host, int(port))
        self._cut_after = list(cut_after)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self.relayed = 0
        self._start(self._accept)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()

    def _start(self, what, *arguments):
        threading.Thread(target=what, args=arguments, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._start(self._send_on, client, server)
            self._start(self._send_back, server, client, self._cut_after.pop(0) if self._cut_after else None)

    def _send_on(self, client, server):
        with contextlib.suppress(OSError):
            while data := client.recv(4096):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _send_back(self, server, client, budget):
        sent = 0
        with contextlib.suppress(OSError):
            while data := server.recv(256):
                sent += len(data)
                self.relayed += len(data)
                if budget is not None and sent > budget:
                    self.cuts += 1
                    break
                client.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
