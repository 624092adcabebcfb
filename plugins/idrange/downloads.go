package idrange

import (
	"errors"
	"fmt"
)

// DefaultDownloadUIDs are the default user ids of downloads: ten thousand below the ids
// that Debian gives to containers, and some that also exist in a user namespace of
// 65536 ids. Neither useradd nor systemd allocates them.
const DefaultDownloadUIDs = "90000-99999,60706-61183"

// reservedRanges ids cannot be used for downloads.
var reservedRanges = []struct {
	Range
	owner string
}{
	{Range{0, 999}, "the accounts of the system"},
	{Range{65534, 65535}, "nobody, as which tasks run"},
	{Range{80000, 89999}, "the users that Nomad makes for tasks"},
	{Range{1<<32 - 1, 1<<32 - 1}, "no user at all"},
}

// ParseDownloadUIDs parses the user ids that downloads may use, and tasks must not. It rejects
// ids that tasks have on other nodes. An empty text means [DefaultDownloadUIDs].
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
