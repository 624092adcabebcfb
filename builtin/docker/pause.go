package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"

	"github.com/moby/moby/client"
)

// pauseImage is the image of the containers that hold the networks of groups. The driver imports it
// into the engine. A change of the image's content must also change the tag.
const pauseImage = "nomad-lite/pause:1"

// pauseCode has the machine code of the pause program by architecture. As process 1 of a container,
// the program reaps orphaned processes and exits on SIGINT or SIGTERM:
//
//	sigprocmask(SIG_BLOCK, {SIGINT, SIGTERM, SIGCHLD})
//	for {
//		switch sigtimedwait({SIGINT, SIGTERM, SIGCHLD}) {
//		case SIGCHLD:
//			for wait4(-1, nil, WNOHANG, nil) > 0 {
//			}
//		case SIGINT, SIGTERM:
//			exit_group(0)
//		}
//	}
//
// The kernel discards signals of process 1 that have no handler, but not while they are
// blocked, so the program needs no handler.
var pauseCode = map[string][]byte{
	"amd64": {
		0xb8, 0x0e, 0x00, 0x00, 0x00, // 0x00: mov  eax, 14 (rt_sigprocmask)
		0x31, 0xff, // 0x05: xor  edi, edi (SIG_BLOCK)
		0x48, 0x8d, 0x35, 0x52, 0x00, 0x00, 0x00, // 0x07: lea  rsi, [rip+0x52] (0x60)
		0x31, 0xd2, // 0x0e: xor  edx, edx
		0x41, 0xba, 0x08, 0x00, 0x00, 0x00, // 0x10: mov  r10d, 8 (size of the set)
		0x0f, 0x05, // 0x16: syscall
		0xb8, 0x80, 0x00, 0x00, 0x00, // 0x18: mov  eax, 128 (rt_sigtimedwait)
		0x48, 0x8d, 0x3d, 0x3c, 0x00, 0x00, 0x00, // 0x1d: lea  rdi, [rip+0x3c] (0x60)
		0x31, 0xf6, // 0x24: xor  esi, esi
		0x31, 0xd2, // 0x26: xor  edx, edx
		0x41, 0xba, 0x08, 0x00, 0x00, 0x00, // 0x28: mov  r10d, 8
		0x0f, 0x05, // 0x2e: syscall
		0x83, 0xf8, 0x11, // 0x30: cmp  eax, 17 (SIGCHLD)
		0x74, 0x0d, // 0x33: je   0x42
		0x85, 0xc0, // 0x35: test eax, eax
		0x78, 0xdf, // 0x37: js   0x18 (interrupted)
		0xb8, 0xe7, 0x00, 0x00, 0x00, // 0x39: mov  eax, 231 (exit_group)
		0x31, 0xff, // 0x3e: xor  edi, edi
		0x0f, 0x05, // 0x40: syscall
		0xb8, 0x3d, 0x00, 0x00, 0x00, // 0x42: mov  eax, 61 (wait4)
		0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff, // 0x47: mov  rdi, -1 (any child)
		0x31, 0xf6, // 0x4e: xor  esi, esi
		0xba, 0x01, 0x00, 0x00, 0x00, // 0x50: mov  edx, 1 (WNOHANG)
		0x45, 0x31, 0xd2, // 0x55: xor  r10d, r10d
		0x0f, 0x05, // 0x58: syscall
		0x85, 0xc0, // 0x5a: test eax, eax
		0x7f, 0xe4, // 0x5c: jg   0x42
		0xeb, 0xb8, // 0x5e: jmp  0x18
		0x02, 0x40, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, // 0x60: set of SIGINT, SIGTERM, SIGCHLD
	},
	"arm64": encodeARM64Instructions(
		0xd28010e8,    // 0x00: mov  x8, 135 (rt_sigprocmask)
		0xd2800000,    // 0x04: mov  x0, 0 (SIG_BLOCK)
		0x10000341,    // 0x08: adr  x1, 0x70
		0xd2800002,    // 0x0c: mov  x2, 0
		0xd2800103,    // 0x10: mov  x3, 8 (size of the set)
		0xd4000001,    // 0x14: svc  0
		0xd2801128,    // 0x18: mov  x8, 137 (rt_sigtimedwait)
		0x100002a0,    // 0x1c: adr  x0, 0x70
		0xd2800001,    // 0x20: mov  x1, 0
		0xd2800002,    // 0x24: mov  x2, 0
		0xd2800103,    // 0x28: mov  x3, 8
		0xd4000001,    // 0x2c: svc  0
		0x7100441f,    // 0x30: cmp  w0, 17 (SIGCHLD)
		0x540000a0,    // 0x34: b.eq 0x48
		0x37ffff00,    // 0x38: tbnz w0, 31, 0x18 (interrupted)
		0xd2800bc8,    // 0x3c: mov  x8, 94 (exit_group)
		0xd2800000,    // 0x40: mov  x0, 0
		0xd4000001,    // 0x44: svc  0
		0xd2802088,    // 0x48: mov  x8, 260 (wait4)
		0x92800000,    // 0x4c: mov  x0, -1 (any child)
		0xd2800001,    // 0x50: mov  x1, 0
		0xd2800022,    // 0x54: mov  x2, 1 (WNOHANG)
		0xd2800003,    // 0x58: mov  x3, 0
		0xd4000001,    // 0x5c: svc  0
		0x7100001f,    // 0x60: cmp  w0, 0
		0x54ffff2c,    // 0x64: b.gt 0x48
		0x17ffffec,    // 0x68: b    0x18
		0xd503201f,    // 0x6c: nop
		0x00014002, 0, // 0x70: set of SIGINT, SIGTERM, SIGCHLD
	),
}

func encodeARM64Instructions(list ...uint32) (code []byte) {
	for _, word := range list {
		code = binary.LittleEndian.AppendUint32(code, word)
	}
	return code
}

// buildPauseELF returns the pause program as an ELF executable without sections. It returns an error
// for an architecture without code in pauseCode.
func buildPauseELF(arch string) ([]byte, error) {
	code, ok := pauseCode[arch]
	if !ok {
		return nil, fmt.Errorf("the driver has no image for the networks of groups on %s: the operator must set infra_image in the configuration of the driver \"docker\"", arch)
	}
	const (
		address  = 0x400000
		pageSize = 1 << 16 // the largest page size of both architectures
	)
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{
			0x7f, 'E', 'L', 'F',
			elf.EI_CLASS: byte(elf.ELFCLASS64), elf.EI_DATA: byte(elf.ELFDATA2LSB), elf.EI_VERSION: byte(elf.EV_CURRENT),
		},
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Phnum: 1,
	}
	segment := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: address, Paddr: address, Align: pageSize}
	headerSize, segmentSize := binary.Size(header), binary.Size(segment)
	header.Ehsize, header.Phentsize, header.Phoff = uint16(headerSize), uint16(segmentSize), uint64(headerSize)
	header.Entry = address + uint64(headerSize+segmentSize)
	segment.Filesz = uint64(headerSize + segmentSize + len(code))
	segment.Memsz = segment.Filesz

	var program bytes.Buffer
	for _, part := range []any{header, segment, code} {
		if err := binary.Write(&program, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return program.Bytes(), nil
}

// importPauseImage makes the pause image in the engine.
func importPauseImage(ctx context.Context, engine *client.Client) error {
	program, err := buildPauseELF(runtime.GOARCH)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	headerErr := w.WriteHeader(&tar.Header{Name: "pause", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))})
	_, writeErr := w.Write(program)
	for _, err := range []error{headerErr, writeErr, w.Close()} {
		if err != nil {
			return err
		}
	}
	name, tag, _ := strings.Cut(pauseImage, ":") // pauseImage has a tag
	result, err := engine.ImageImport(ctx, client.ImageImportSource{Source: &archive, SourceName: "-"}, name,
		client.ImageImportOptions{Tag: tag, Changes: []string{`ENTRYPOINT ["/pause"]`}})
	if err != nil {
		return markRecoverableUnlessRefused(fmt.Errorf("import the image %s: %w", pauseImage, err))
	}
	defer result.Close()
	if err := readEngineMessages(result, func(string) {}); err != nil {
		return fmt.Errorf("import the image %s: %w", pauseImage, err)
	}
	return nil
}
