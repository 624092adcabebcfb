package launch

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// magicCookieNotice is part of the message that every go-plugin binary prints if the environment does not contain the
// magic cookie that it expects.
const magicCookieNotice = "not meant to be executed directly"

// explainSpawnError returns err with the reason why the kernel refused to execute the file, if the reason is known.
func explainSpawnError(err error, path string, file *os.File) error {
	switch {
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("%w: %s", err, describeUnexecutableFile(path, file))
	case errors.Is(err, unix.ENOENT):
		if name := findMissingInterpreter(path, file); name != "" {
			return fmt.Errorf("%w: it needs the interpreter %s, which is not on this machine", err, name)
		}
	case errors.Is(err, unix.ETXTBSY):
		return fmt.Errorf("%w: a process has the file open for writing", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the file has no execute bit for this user, or its file system is mounted noexec", err)
	}
	return err
}

// describeUnexecutableFile returns the reason for ENOEXEC: what kind of file the kernel cannot execute.
func describeUnexecutableFile(path string, file *os.File) string {
	r, done := openExecutableReader(path, file)
	if r == nil {
		return "the file is not executable on this machine"
	}
	defer done()
	f, err := elf.NewFile(r)
	if err != nil {
		head := make([]byte, 2)
		if n, _ := r.ReadAt(head, 0); n == 0 {
			return "the file is empty"
		} else if string(head[:n]) == "MZ" {
			return "the file is a Windows program"
		}
		return "the file is neither an ELF program nor a script that begins with #!"
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return "the file is an ELF file but no program"
	}
	return fmt.Sprintf("the file is built for %s, this machine is %s", goarchOfELFMachine(f.Machine), runtime.GOARCH)
}

func goarchOfELFMachine(m elf.Machine) string {
	switch m {
	case elf.EM_X86_64:
		return "amd64"
	case elf.EM_386:
		return "386"
	case elf.EM_AARCH64:
		return "arm64"
	case elf.EM_ARM:
		return "arm"
	case elf.EM_RISCV:
		return "riscv64"
	case elf.EM_S390:
		return "s390x"
	case elf.EM_PPC64:
		return "ppc64"
	}
	return strings.ToLower(strings.TrimPrefix(m.String(), "EM_"))
}

// findMissingInterpreter returns the loader of an ELF file or the interpreter of a script, if that
// does not exist.
func findMissingInterpreter(path string, file *os.File) string {
	r, done := openExecutableReader(path, file)
	if r == nil {
		return ""
	}
	defer done()
	name := ""
	if f, err := elf.NewFile(r); err == nil {
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
				b, _ := io.ReadAll(p.Open())
				name = strings.TrimRight(string(b), "\x00")
			}
		}
	} else {
		line, _ := bufio.NewReader(io.NewSectionReader(r, 0, 256)).ReadString('\n')
		if rest, ok := strings.CutPrefix(line, "#!"); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				name = fields[0]
			}
		}
	}
	if name == "" {
		return ""
	}
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
		return name
	}
	return ""
}

// openExecutableReader returns a reader of the file, or of the file at path if file is nil, and a function
// that releases the reader. Both are nil if the file cannot be opened.
func openExecutableReader(path string, file *os.File) (r io.ReaderAt, release func()) {
	if file != nil {
		return file, func() {}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil
	}
	return f, func() { f.Close() }
}

// errorWithStderr returns an error with the last lines of the plugin's stderr since the given time.
func errorWithStderr(reason string, t *stderrTail, since time.Time) error {
	lines, isPanic := t.panicOrLastLines(since)
	switch {
	case len(lines) == 0:
		return errors.New(reason)
	case isPanic:
		return &ProcessPanicError{reason, lines}
	case strings.Contains(strings.Join(lines, " "), magicCookieNotice):
		return fmt.Errorf("%s: it is a plugin of another program than Nomad (it refuses the magic cookie)", reason)
	case len(lines) == 1:
		return fmt.Errorf("%s, its last words on stderr: %s", reason, lines[0])
	}
	return fmt.Errorf("%s, its last words on stderr:\n\t%s", reason, strings.Join(lines, "\n\t"))
}
