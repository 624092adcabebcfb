package logfile

import (
	"strconv"
	"strings"
)

// maxDigits is the maximum length of an index. Each number of that length fits an int64.
const maxDigits = 15

// Prefix returns the part of the names of a stream's files before the index. The stream is stdout or stderr.
func Prefix(task, stream string) string { return task + "." + stream + "." }

// Name returns the name of a file, whose index is not negative.
func Name(prefix string, index int64) string { return prefix + strconv.FormatInt(index, 10) }

// Index returns the index in the name of a file that starts with the Prefix of its stream. It returns false for files of other
// streams and for files whose name Name does not return.
func Index(name, prefix string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok || digits == "" || len(digits) > maxDigits || digits[0] == '0' && digits != "0" {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	return int64(n), err == nil
}
