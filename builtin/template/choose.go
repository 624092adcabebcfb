package template

import (
	"cmp"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// chooseServices returns the instances that choose selects. choose has the form number|key. A key selects the same instances until one of
// them exits or a new instance ranks before them. An empty choose selects all instances. Another form gets the error of Nomad's
// servers.
func chooseServices(instances []hook.Service, choose string) ([]hook.Service, error) {
	if choose == "" {
		return instances, nil
	}
	number, key, _ := strings.Cut(choose, "|")
	count, err := strconv.Atoi(number)
	if err != nil || count < 0 || key == "" || strings.Contains(key, "|") {
		return nil, errors.New("parameter for choose must be in form '<number>|<key>'")
	}
	rank := func(s hook.Service) string {
		h := fnv.New128a()
		_, _ = h.Write([]byte(key + "\x00" + s.ID)) // the Write of a hash never fails
		return string(h.Sum(nil))
	}
	ranked := slices.SortedFunc(slices.Values(instances), func(a, b hook.Service) int { return cmp.Compare(rank(a), rank(b)) })
	return ranked[:min(count, len(ranked))], nil
}
