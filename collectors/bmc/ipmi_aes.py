"""AES-128-CBC from the libcrypto that Python's own ssl module stands on.

RMCP+ encrypts with AES, which the standard library does not offer, and a dependency for one
function would reach every agent. OpenSSL's EVP interface (EVP_EncryptInit(3)) has been stable
since 1.1. It is asked for single blocks (ECB), and they are chained here (NIST SP 800-38A, 6.2):
a context that is never given a new IV needs one call a packet instead of two, and nearly all
requests are one block.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools

BLOCK_BYTES = 16


class NoCipher(Exception):
    """No usable libcrypto is on this machine."""


@functools.cache
def _library() -> ctypes.PyDLL:
    import _ssl  # its being loaded puts libcrypto into this process

    names = ["libcrypto.so.3", "libcrypto.so.1.1", ctypes.util.find_library("crypto"), None]
    for name in names:
        try:
            # PyDLL: a call takes less time than letting go of the interpreter's lock for it.
            library = ctypes.PyDLL(name) if name or _ssl else None
            if library is None:
                continue
            library.EVP_aes_128_ecb.restype = ctypes.c_void_p
            library.EVP_aes_128_ecb.argtypes = []
            library.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
            library.EVP_CIPHER_CTX_new.argtypes = []
            library.EVP_CIPHER_CTX_free.argtypes = [ctypes.c_void_p]
            library.EVP_CIPHER_CTX_free.restype = None
            library.EVP_CIPHER_CTX_set_padding.argtypes = [ctypes.c_void_p, ctypes.c_int]
            library.EVP_CipherInit_ex.argtypes = [
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_int,
            ]
            library.EVP_CipherUpdate.argtypes = [
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_char_p,
                ctypes.c_int,
            ]
        except (OSError, AttributeError):
            continue
        return library
    raise NoCipher("no libcrypto on this machine: install OpenSSL (libssl3)")


class Cbc:
    """AES-128-CBC with one key, without padding. ``close`` frees OpenSSL's contexts."""

    def __init__(self, key: bytes) -> None:
        if len(key) != BLOCK_BYTES:
            raise ValueError("the key has 16 bytes")
        self._library = _library()
        self._update = self._library.EVP_CipherUpdate
        self._contexts = [self._context(key, encrypt) for encrypt in (1, 0)]
        self._size = ctypes.c_int()
        self._size_at = ctypes.addressof(self._size)
        self._room(4 * BLOCK_BYTES)

    def _room(self, size_bytes: int) -> None:
        """Room for the answers of OpenSSL, one block more than they have."""
        self._out = ctypes.create_string_buffer(size_bytes + BLOCK_BYTES)
        self._out_at = ctypes.addressof(self._out)
        self._room_bytes = size_bytes

    def _context(self, key: bytes, encrypt: int) -> int:
        context = self._library.EVP_CIPHER_CTX_new()
        if not context:
            raise NoCipher("OpenSSL gives no cipher context")
        cipher = self._library.EVP_aes_128_ecb()
        done = self._library.EVP_CipherInit_ex(context, cipher, None, key, None, encrypt)
        if done != 1:
            self._library.EVP_CIPHER_CTX_free(context)
            raise NoCipher("OpenSSL does not offer AES-128")
        self._library.EVP_CIPHER_CTX_set_padding(context, 0)
        return int(context)

    def encrypt(self, iv: bytes, plain: bytes) -> bytes:
        """``plain``, whole blocks, encrypted."""
        if len(plain) == BLOCK_BYTES:
            return self._run(0, _xor(iv, plain))
        parts = []
        for place in range(0, len(plain), BLOCK_BYTES):
            iv = self._run(0, _xor(iv, plain[place : place + BLOCK_BYTES]))
            parts.append(iv)
        return b"".join(parts)

    def decrypt(self, iv: bytes, secret: bytes) -> bytes:
        """``secret``, whole blocks, decrypted."""
        return _xor(iv + secret[:-BLOCK_BYTES], self._run(1, secret))

    def _run(self, which: int, data: bytes) -> bytes:
        if not self._contexts:
            raise NoCipher("the session is closed")
        length = len(data)
        if length % BLOCK_BYTES:
            raise ValueError("no whole blocks")
        if length > self._room_bytes:
            self._room(length)
        done = self._update(self._contexts[which], self._out_at, self._size_at, data, length)
        if done != 1 or self._size.value != length:
            raise NoCipher("OpenSSL could not run AES-128")
        # A slice takes a sixth of the time that ctypes.string_at takes; of characters it is bytes.
        return self._out[:length]  # type: ignore[return-value]

    def close(self) -> None:
        """Frees the contexts. May be called twice."""
        while self._contexts:
            self._library.EVP_CIPHER_CTX_free(self._contexts.pop())

    def __del__(self) -> None:
        if getattr(self, "_contexts", None):
            self.close()


def _xor(one: bytes, other: bytes) -> bytes:
    """Bit by bit; ValueError unless both have the same length."""
    length = len(one)
    if length != len(other):
        raise ValueError("no whole blocks")
    both = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return both.to_bytes(length, "little")
