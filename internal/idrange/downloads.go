package idrange

import (
	"errors"
	"fmt"
)

// DefaultDownloadUIDs are the default user ids of downloads: ten thousand below the ids
// that Debian reserves for containers, and some below 65536 for user namespaces of that
// size. Neither useradd nor systemd allocates them.
const DefaultDownloadUIDs = "90000-99999,60706-61183"

// reservedRanges are the ids that downloads must not use.
var reservedRanges = []struct {
	Range
	owner string
}{
	{Range{0, 999}, "the accounts of the system"},
	{Range{65534, 65535}, "nobody, as which tasks run"},
	{Range{80000, 89999}, "the users that Nomad makes for tasks"},
	{Range{1<<32 - 1, 1<<32 - 1}, "no user at all"},
}

// ParseDownloadUIDs parses the user ids that are reserved for downloads, and that tasks
// must not use. It rejects ids in the ranges of system accounts, of nobody, and of the
// users that Nomad creates for tasks. An empty text means [DefaultDownloadUIDs].
func ParseDownloadUIDs(text string) (Set, error) {
	if text == "" {
		text = DefaultDownloadUIDs
	}
	set, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if set.Len() == 0 {
		return nil, errors.New("names no user id")
	}
	for _, r := range reservedRanges {
		if set.Overlaps(r.Range) {
			return nil, fmt.Errorf("has user ids of %d-%d, which belong to %s: take others, such as %s", r.First, r.Last, r.owner, DefaultDownloadUIDs)
		}
	}
	return set, nil
}
