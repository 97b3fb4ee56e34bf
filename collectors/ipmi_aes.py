"""AES-128-CBC from the libcrypto that Python's own ssl module stands on.

RMCP+ encrypts with AES, which the standard library does not offer, and a dependency for one
function would reach every agent. OpenSSL's EVP interface (EVP_EncryptInit(3)) has been stable
since 1.1; the two contexts of a session are made once and only get a new IV for each packet.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools

BLOCK_BYTES = 16


class NoCipher(Exception):
    """No usable libcrypto is on this machine."""


@functools.cache
def _library() -> ctypes.CDLL:
    import _ssl  # its being loaded puts libcrypto into this process

    names = ["libcrypto.so.3", "libcrypto.so.1.1", ctypes.util.find_library("crypto"), None]
    for name in names:
        try:
            library = ctypes.CDLL(name) if name or _ssl else None
            if library is None:
                continue
            library.EVP_aes_128_cbc.restype = ctypes.c_void_p
            library.EVP_aes_128_cbc.argtypes = []
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
                ctypes.c_char_p,
                ctypes.POINTER(ctypes.c_int),
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
        self._contexts = [self._context(key, encrypt) for encrypt in (1, 0)]
        self._size = ctypes.c_int()

    def _context(self, key: bytes, encrypt: int) -> int:
        context = self._library.EVP_CIPHER_CTX_new()
        if not context:
            raise NoCipher("OpenSSL gives no cipher context")
        cipher = self._library.EVP_aes_128_cbc()
        done = self._library.EVP_CipherInit_ex(context, cipher, None, key, None, encrypt)
        if done != 1:
            self._library.EVP_CIPHER_CTX_free(context)
            raise NoCipher("OpenSSL does not offer AES-128-CBC")
        self._library.EVP_CIPHER_CTX_set_padding(context, 0)
        return int(context)

    def encrypt(self, iv: bytes, plain: bytes) -> bytes:
        """``plain``, whole blocks, encrypted."""
        return self._run(0, iv, plain)

    def decrypt(self, iv: bytes, secret: bytes) -> bytes:
        """``secret``, whole blocks, decrypted."""
        return self._run(1, iv, secret)

    def _run(self, which: int, iv: bytes, data: bytes) -> bytes:
        if not self._contexts:
            raise NoCipher("the session is closed")
        if len(iv) != BLOCK_BYTES or len(data) % BLOCK_BYTES:
            raise ValueError("no whole blocks")
        context = self._contexts[which]
        done = self._library.EVP_CipherInit_ex(context, None, None, None, iv, -1)
        out = ctypes.create_string_buffer(len(data) + BLOCK_BYTES)
        size = self._size
        if done == 1:
            done = self._library.EVP_CipherUpdate(context, out, size, data, len(data))
        if done != 1 or size.value != len(data):
            raise NoCipher("OpenSSL could not run AES-128-CBC")
        return out.raw[: len(data)]

    def close(self) -> None:
        """Frees the contexts. May be called twice."""
        while self._contexts:
            self._library.EVP_CIPHER_CTX_free(self._contexts.pop())

    def __del__(self) -> None:
        if getattr(self, "_contexts", None):
            self.close()
