package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/racedetector"
)

// inspectOrRestore is the role of a process that inspects the hostile file at path or, if testCopyEnvVar is set, opens it and
// copies its state. It prints its peak memory and its result.
func inspectOrRestore(path string) {
	var err error
	damage := 0
	if copyPath, ok := os.LookupEnv(testCopyEnvVar); ok {
		var s *Store
		s, err = Open(context.Background(), Config{StateFilePath: path, ContinueAtHigherIndex: true, Logger: hclog.NewNullLogger()})
		if err == nil {
			var file *os.File
			if file, err = os.Create(copyPath); err == nil {
				_, _, err = s.WriteCopy(context.Background(), file)
				err = errors.Join(err, file.Close())
			}
			err = errors.Join(err, s.Close())
		}
	} else if contents, inspectErr := InspectFile(path); inspectErr == nil {
		damage = len(contents.Damage)
	} else {
		err = inspectErr
	}
	var status procfs.ProcStatus
	self, statusErr := procfs.Self()
	if statusErr == nil {
		status, statusErr = self.NewStatus()
	}
	fmt.Println(status.VmHWM>>10, damage, errors.Join(statusErr, err))
}

// testCopyEnvVar is the path of the copy written by inspectOrRestore.
const testCopyEnvVar = "NOMAD_LITE_STORE_COPY"

// hostileFile writes a state file at path that needs much more memory or time than its size.
type hostileFile struct {
	name       string
	minDamages int // reported by InspectFile
	write      func(path string, random *rand.Rand) error
}

// hostileRecords returns a table's writes with the records payload(0), payload(1) and so on.
func hostileRecords(table string, count int, record func(i int) (key string, payload []byte)) func(yield func(bucketWrite) bool) {
	return func(yield func(bucketWrite) bool) {
		yield(encodeFormatRecord(formatRecord{currentFormat.number, currentFormat.oldestReaderFormat, "0.1.0"}))
		for i := range count {
			key, payload := record(i)
			if !yield(bucketWrite{table, key, encodeRecord(table, key, 1, payload)}) {
				return
			}
		}
	}
}

func msgpackMap(pairs ...[]byte) []byte {
	return append([]byte{0x80 | byte(len(pairs)/2)}, bytes.Join(pairs, nil)...)
}

func msgpackString(s string) []byte { return append([]byte{0xa0 | byte(len(s))}, s...) }

// rawPage returns a bbolt file page with a header.
func rawPage(id uint64, flags uint16, count int, size int) []byte {
	b := make([]byte, size)
	le := binary.LittleEndian
	le.PutUint64(b, id)
	le.PutUint16(b[8:], flags)
	le.PutUint16(b[10:], uint16(count))
	le.PutUint32(b[12:], uint32(size/pageSize-1))
	return b
}

func putRawElement(page []byte, i int, flags, pos, keySize, valueSize int) {
	at := pageHeaderSize + i*elementHeaderSize
	for j, n := range []int{flags, pos - at, keySize, valueSize} {
		binary.LittleEndian.PutUint32(page[at+4*j:], uint32(n))
	}
}

// writeRawFile writes a bbolt file with a table "jobs" and its root page 3. The pages follow each other from page 3; size is
// the file size, if it is more.
func writeRawFile(path string, size int64, pages ...[]byte) error {
	text := make([]byte, 2*pageSize)
	content := bytes.Join(pages, nil)
	size = max(size, int64(3*pageSize+len(content)))
	for id := range uint64(2) {
		meta := text[id*pageSize:]
		le := binary.LittleEndian
		le.PutUint64(meta, id)
		le.PutUint16(meta[8:], metaPageFlag)
		m := meta[pageHeaderSize:]
		le.PutUint32(m, metaMagic)
		le.PutUint32(m[4:], metaVersion)
		le.PutUint32(m[8:], pageSize)
		le.PutUint64(m[16:], 2)
		le.PutUint64(m[32:], noFreelist)
		le.PutUint64(m[40:], uint64(size/pageSize))
		le.PutUint64(m[48:], id)
		checksum := fnv.New64a()
		checksum.Write(m[:56])
		le.PutUint64(m[56:], checksum.Sum64())
	}
	root := rawPage(2, leafPageFlag, 1, pageSize)
	at := pageHeaderSize + elementHeaderSize
	putRawElement(root, 0, bucketElementFlag, at, 4, bucketHeaderSize)
	copy(root[at:], "jobs")
	binary.LittleEndian.PutUint64(root[at+4:], 3)
	if err := os.WriteFile(path, slices.Concat(text, root, content), 0o600); err != nil {
		return err
	}
	return os.Truncate(path, size)
}

func writeHostileRecords(path string, records func(yield func(bucketWrite) bool)) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(writeNewStateFile(file, records), file.Close())
}

// hostileFiles are the test's files, with random sizes.
var hostileFiles = []hostileFile{
	{"many records", 0, func(path string, random *rand.Rand) error {
		return writeHostileRecords(path, hostileRecords("namespaces", 100e3+random.IntN(50e3), func(i int) (string, []byte) {
			name := fmt.Sprintf("n%06x", i)
			return name, msgpackMap(msgpackString("Name"), msgpackString(name))
		}))
	}},
	{"a value of many levels", 1, func(path string, random *rand.Rand) error {
		payload := msgpackMap(msgpackString("Unknown"), bytes.Repeat([]byte{0x91}, 10e3+random.IntN(10e3)))
		return writeHostileRecords(path, hostileRecords("namespaces", 1, func(int) (string, []byte) { return "n", payload }))
	}},
	{"elements that all have the same bytes", 1, func(path string, random *rand.Rand) error {
		page := rawPage(3, leafPageFlag, 60e3, (16<<20+random.IntN(16<<20))/pageSize*pageSize)
		for i := range 60_000 {
			putRawElement(page, i, 0, pageHeaderSize+60_000*elementHeaderSize, 1+i, len(page)-pageHeaderSize-60_000*elementHeaderSize-1-i)
		}
		return writeRawFile(path, 0, page)
	}},
	{"millions of unreadable elements", maxUnreadableParts, func(path string, random *rand.Rand) error {
		const pageCount, perPage = 90, 60_000
		branch := rawPage(3, branchPageFlag, pageCount, pageSize)
		pages := [][]byte{branch}
		at, id := pageHeaderSize+pageCount*elementHeaderSize, uint64(4)
		for i := range pageCount {
			element := branch[pageHeaderSize+i*elementHeaderSize:]
			binary.LittleEndian.PutUint32(element, uint32(at+2*i-(pageHeaderSize+i*elementHeaderSize)))
			binary.LittleEndian.PutUint32(element[4:], 2)
			binary.LittleEndian.PutUint64(element[8:], id)
			copy(branch[at+2*i:], []byte{1, byte(i)})
			page := rawPage(id, leafPageFlag, perPage, (perPage*elementHeaderSize/pageSize+1)*pageSize)
			for j := range perPage {
				putRawElement(page, j, 0, 1<<30+random.IntN(1<<20), 1, 1)
			}
			pages, id = append(pages, page), id+uint64(len(page)/pageSize)
		}
		return writeRawFile(path, 0, pages...)
	}},
	{"a sparse file", 1, func(path string, random *rand.Rand) error {
		page := rawPage(3, leafPageFlag, 1, pageSize)
		binary.LittleEndian.PutUint32(page[12:], 1<<28-10)
		return writeRawFile(path, 1<<40+random.Int64N(1<<30)*pageSize, page)
	}},
	{"pages in a circle", 1, func(path string, random *rand.Rand) error {
		var pages [][]byte
		for id := range uint64(50) {
			const count = 100
			page := rawPage(3+id, branchPageFlag, count, pageSize)
			for i := range count {
				element := page[pageHeaderSize+i*elementHeaderSize:]
				binary.LittleEndian.PutUint32(element, uint32(pageHeaderSize+count*elementHeaderSize+i-(pageHeaderSize+i*elementHeaderSize)))
				binary.LittleEndian.PutUint32(element[4:], 1)
				binary.LittleEndian.PutUint64(element[8:], random.Uint64N(60))
				page[pageHeaderSize+count*elementHeaderSize+i] = byte(i)
			}
			pages = append(pages, page)
		}
		return writeRawFile(path, 0, pages...)
	}},
}

// A hostile file needs limited memory, disk space and time.
func TestHostileStateFiles(t *testing.T) {
	const maxMemoryKiB, maxDiskBytes = 512 << 10, 1 << 30
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("NOMAD_LITE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	for i, h := range hostileFiles {
		t.Run(h.name, func(t *testing.T) {
			path := tempStatePath(t)
			if err := h.write(path, rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
				t.Fatal(err)
			}
			for _, env := range []string{"", testCopyEnvVar + "=" + path + ".copy"} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				reader := exec.CommandContext(ctx, os.Args[0])
				reader.Env = append(os.Environ(), testRoleEnvVar+"=hostile file", testPathEnvVar+"="+path, env)
				start := time.Now()
				out, err := reader.CombinedOutput()
				took := time.Since(start).Round(time.Millisecond)
				if err != nil {
					t.Fatalf("%s: %v after %v: %.2000s", env, err, took, out)
				}
				var peakKiB, damages int
				var result string
				if _, err := fmt.Sscan(string(out), &peakKiB, &damages, &result); err != nil || result != "<nil>" {
					t.Fatalf("%s: %v, %.2000s", env, err, out)
				}
				t.Logf("%d MiB, %v", peakKiB>>10, took)
				if peakKiB > maxMemoryKiB && !racedetector.Enabled {
					t.Errorf("%s: %d MiB of memory", env, peakKiB>>10)
				}
				if env == "" && damages < h.minDamages {
					t.Errorf("%d damaged parts, want %d or more", damages, h.minDamages)
				}
			}
			var size int64
			entries, err := os.ReadDir(filepath.Dir(path))
			for _, e := range entries {
				var st unix.Stat_t
				if err == nil {
					err = unix.Stat(filepath.Join(filepath.Dir(path), e.Name()), &st)
				}
				size += 512 * st.Blocks
			}
			if err != nil || size > maxDiskBytes {
				t.Errorf("%d bytes of disk space, %v", size, err)
			}
		})
	}
}
