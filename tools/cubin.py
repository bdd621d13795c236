# SPDX-License-Identifier: Apache-2.0
"""Machine code of CUDA kernels: cubins inside objects and libraries, and traps in their code.

Where device code would have to refer to a constant of the host (std::min(x, kLimit) takes both by
reference) inside a constexpr function, nvcc says nothing and puts a trap there (for sm_100
it may just end the kernel, so what is compiled for sm_80 or sm_90 is what tells). No kernel of ours
asks for one."""

import struct

ELF_MAGIC = b"\x7fELF\x02"
EM_CUDA = 190
INSTRUCTION_BYTES = 16  # since compute capability 7.0
OPCODE_MASK = 0xFFF
BREAKPOINT_TRAP = 0x95C  # BPT


def section_names_and_bytes(elf):
    offset, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
    names_at = headers[names][4]
    for name, kind, _, _, at, length in headers:
        end = elf.index(b"\0", names_at + name)
        if kind == 1:  # SHT_PROGBITS
            yield elf[names_at + name:end].decode(), elf[at:at + length]


def cubins(data):
    """Every cubin in the bytes of an object, a library or a cubin file."""
    at = data.find(ELF_MAGIC)
    while at >= 0:
        if struct.unpack_from("<H", data, at + 0x12)[0] == EM_CUDA:
            yield data[at:]
        at = data.find(ELF_MAGIC, at + 1)


def kernels(data):
    """(mangled name, code) of every kernel and device function."""
    for elf in cubins(data):
        for name, code in section_names_and_bytes(elf):
            if name.startswith(".text."):
                yield name[len(".text."):], code


def has_trap(code):
    return any(struct.unpack_from("<Q", code, at)[0] & OPCODE_MASK == BREAKPOINT_TRAP
               for at in range(0, len(code), INSTRUCTION_BYTES))
