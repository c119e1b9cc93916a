"""A D-Bus client of a hundred lines for the peer-to-peer socket: says what no well-behaved library would say.

Source: D-Bus specification 0.41, "Authentication protocol" and "Message protocol". Little endian throughout.
"""

import os
import socket
import struct

MANAGER = '/org/numalease1'
INTERFACE = 'org.numalease1.Manager'
METHOD_CALL, METHOD_RETURN, ERROR = 1, 2, 3


class BusError(Exception):
    def __init__(self, name, text):
        super().__init__(f'{name}: {text}')
        self.name = name.rsplit('.', 1)[-1]
        self.text = text


class Variant:
    def __init__(self, signature, value):
        self.signature, self.value = signature, value


ALIGN = {'y': 1, 'g': 1, 'v': 1, 'b': 4, 'u': 4, 'i': 4, 's': 4, 'o': 4, 'a': 4, 't': 8, 'x': 8, 'd': 8, '(': 8, '{': 8}
FIXED = {'y': 'B', 'b': 'I', 'u': 'I', 'i': 'i', 't': 'Q', 'x': 'q', 'd': 'd', 'n': 'h', 'q': 'H'}


def split(signature):
    """The first complete type of a signature, and the rest."""
    if signature[0] == 'a':
        one, rest = split(signature[1:])
        return 'a' + one, rest
    if signature[0] in '({':
        depth = 0
        for at, char in enumerate(signature):
            depth += (char in '({') - (char in ')}')
            if depth == 0:
                return signature[:at + 1], signature[at + 1:]
    return signature[0], signature[1:]


def types(signature):
    while signature:
        one, signature = split(signature)
        yield one


def pad(out, to):
    out.extend(bytes(-len(out) % to))


def put(out, kind, value):
    pad(out, ALIGN.get(kind[0], 2))
    if kind in FIXED:
        out.extend(struct.pack('<' + FIXED[kind], value))
    elif kind in 'so':
        data = value if isinstance(value, bytes) else value.encode()
        out.extend(struct.pack('<I', len(data)) + data + b'\0')
    elif kind == 'g':
        out.extend(bytes([len(value)]) + value.encode() + b'\0')
    elif kind == 'v':
        variant = value if isinstance(value, Variant) else Variant('s', value)
        put(out, 'g', variant.signature)
        put(out, variant.signature, variant.value)
    elif kind[0] == 'a':
        at = len(out)
        out.extend(bytes(4))
        pad(out, ALIGN.get(kind[1], 2))
        start = len(out)
        for item in value.items() if isinstance(value, dict) else value:
            put(out, kind[1:], item)
        out[at:at + 4] = struct.pack('<I', len(out) - start)
    else:
        for one, item in zip(types(kind[1:-1]), value, strict=True):
            put(out, one, item)


def get(data, at, kind):
    at += -at % ALIGN.get(kind[0], 2)
    if kind in FIXED:
        (value,) = struct.unpack_from('<' + FIXED[kind], data, at)
        return (bool(value) if kind == 'b' else value), at + struct.calcsize(FIXED[kind])
    if kind in 'so':
        (size,) = struct.unpack_from('<I', data, at)
        return data[at + 4:at + 4 + size].decode(), at + 5 + size
    if kind == 'g':
        size = data[at]
        return data[at + 1:at + 1 + size].decode(), at + 2 + size
    if kind == 'v':
        inner, at = get(data, at, 'g')
        return get(data, at, inner)
    if kind[0] == 'a':
        (size,) = struct.unpack_from('<I', data, at)
        at += 4
        at += -at % ALIGN.get(kind[1], 2)
        end, out = at + size, []
        while at < end:
            value, at = get(data, at, kind[1:])
            out.append(value)
        return (dict(out) if kind[1] == '{' else out), at
    out = []
    for one in types(kind[1:-1]):
        value, at = get(data, at, one)
        out.append(value)
    return tuple(out), at


class Wire:
    """One connection. Calls can be sent without waiting for their answers."""

    def __init__(self, path, timeout=20):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)  # waits for room in the listener's queue, which it would not with a time set
        self.socket.settimeout(timeout)
        self._buffer = b''
        self._serial = 0
        self._replies = {}
        self.socket.sendall(b'\0AUTH EXTERNAL ' + str(os.geteuid()).encode().hex().encode() + b'\r\n')
        answer = self._line()
        if not answer.startswith(b'OK '):
            raise ConnectionError(answer)
        self.socket.sendall(b'BEGIN\r\n')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def _more(self):
        part = self.socket.recv(65536)
        if not part:
            raise ConnectionError('closed by the daemon')
        self._buffer += part

    def _line(self):
        while b'\r\n' not in self._buffer:
            self._more()
        line, self._buffer = self._buffer.split(b'\r\n', 1)
        return line

    def bytes_of(self, member, signature='', *arguments):
        """A method call to the manager with the next serial number."""
        self._serial += 1
        body = bytearray()
        for kind, value in zip(types(signature), arguments, strict=True):
            put(body, kind, value)
        fields = [(1, Variant('o', MANAGER)), (2, Variant('s', INTERFACE)), (3, Variant('s', member))]
        if signature:
            fields.append((8, Variant('g', signature)))
        head = bytearray(struct.pack('<cBBBII', b'l', METHOD_CALL, 0, 1, len(body), self._serial))
        put(head, 'a(yv)', fields)
        pad(head, 8)
        return bytes(head + body)

    def send(self, member, signature='', *arguments):
        """Sends a method call to the manager; returns its serial number."""
        self.socket.sendall(self.bytes_of(member, signature, *arguments))
        return self._serial

    def _message(self):
        while len(self._buffer) < 16:
            self._more()
        _, kind, _, _, body_size, _, fields_size = struct.unpack_from('<cBBBIII', self._buffer)
        head_size = 16 + fields_size + -fields_size % 8
        while len(self._buffer) < head_size + body_size:
            self._more()
        fields = dict(get(self._buffer, 12, 'a(yv)')[0])
        body = self._buffer[head_size:head_size + body_size]
        self._buffer = self._buffer[head_size + body_size:]
        values, at = [], 0
        for one in types(fields.get(8, '')):
            value, at = get(body, at, one)
            values.append(value)
        if kind in (METHOD_RETURN, ERROR):
            self._replies[fields[5]] = (fields.get(4), values)

    def answer(self, serial):
        """Waits for the answer to a call: a value, a tuple of them, or BusError."""
        while serial not in self._replies:
            self._message()
        error, values = self._replies.pop(serial)
        if error:
            raise BusError(error, values[0] if values else '')
        return values[0] if len(values) == 1 else tuple(values)

    def call(self, member, signature='', *arguments):
        return self.answer(self.send(member, signature, *arguments))

    def acquire(self, **fields):
        """Underscores stand for dashes. Returns (id, lease)."""
        return self.call('Acquire', 'a{sv}', {name.replace('_', '-'): value for name, value in fields.items()})
