package artifact

import (
	"bufio"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"
)

// hashFuncs are the supported hash functions of checksums.
var hashFuncs = []struct {
	kind string
	new  func() hash.Hash
}{
	{"md5", md5.New},
	{"sha1", sha1.New},
	{"sha256", sha256.New},
	{"sha512", sha512.New},
}

// checksum is the expected checksum of a file.
type checksum struct {
	algorithm       string
	expectedHex     string // lower-case hexadecimal
	writtenDataHash hash.Hash
}

// parseChecksum parses "kind:hex", or only the hex, whose length determines the
// kind.
func parseChecksum(text string) (*checksum, error) {
	kind, value, ok := strings.Cut(text, ":")
	if !ok {
		kind, value = "", text
	}
	sum, err := hex.DecodeString(value)
	if err != nil {
		return nil, fmt.Errorf("invalid checksum: %v", err)
	}
	for _, h := range hashFuncs {
		made := h.new()
		if kind == h.kind && len(sum) != made.Size() {
			return nil, fmt.Errorf("invalid %s checksum: %s", kind, value)
		}
		if kind == h.kind || kind == "" && len(sum) == made.Size() {
			return &checksum{algorithm: h.kind, expectedHex: hex.EncodeToString(sum), writtenDataHash: made}, nil
		}
	}
	if kind == "" {
		return nil, fmt.Errorf("no kind of checksum has %d bytes", len(sum))
	}
	return nil, fmt.Errorf("unsupported checksum type: %s", kind)
}

// bsdChecksumPattern matches a line of BSD's checksum tools, such as "SHA256 (file) = hex".
var bsdChecksumPattern = lazyRegexp(`^(MD5|SHA1|SHA256|SHA512) \((.+)\) = ([0-9a-fA-F]+)$`)

// findChecksumForFile reads a file of checksums in the format of sha256sum or of BSD's sha256, or a file
// with a single checksum. It returns the checksum of the named file in a form that parseChecksum
// accepts.
func findChecksumForFile(checksumFile io.Reader, fileName string) (string, error) {
	var hashOnlyLines []string
	for lines := bufio.NewScanner(checksumFile); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if m := bsdChecksumPattern().FindStringSubmatch(line); m != nil {
			if path.Base(m[2]) == fileName {
				return strings.ToLower(m[1]) + ":" + m[3], nil
			}
			continue
		}
		switch fields := strings.Fields(line); {
		case len(fields) == 1:
			hashOnlyLines = append(hashOnlyLines, fields[0])
		case len(fields) == 2 && path.Base(strings.TrimPrefix(fields[1], "*")) == fileName:
			return fields[0], nil
		}
	}
	if len(hashOnlyLines) == 1 {
		return hashOnlyLines[0], nil
	}
	return "", fmt.Errorf("the file of checksums has none for %q", fileName)
}

// checkWrittenData returns an error if the checksum differs from the checksum of the data
// written to hash.
func (c *checksum) checkWrittenData(fileName string) error {
	if got := hex.EncodeToString(c.writtenDataHash.Sum(nil)); got != c.expectedHex {
		//lint:ignore ST1005 people and scripts know these words
		return fmt.Errorf("Checksums did not match for %s: expected %s %s, got %s", fileName, c.algorithm, c.expectedHex, got)
	}
	return nil
}
