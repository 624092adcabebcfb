package compose

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// Memory of a service whose file has no limit.
const (
	defaultMemoryMB      = 256
	defaultMemoryLimitMB = 2048
)

// cpuMHz is what a whole CPU becomes: the driver divides the time of busy CPUs by these numbers.
const cpuMHz = 1000

// writeResources writes the resources block, and the options of the driver for them.
func (t *task) writeResources() error {
	deploy := t.get("deploy")
	t.warnOfDeploy(deploy)
	limits, reservations := deploy.get("resources").get("limits"), deploy.get("resources").get("reservations")
	limit, err := firstBytes(limits.get("memory"), t.get("mem_limit"))
	if err != nil {
		return err
	}
	reserved, err := firstBytes(reservations.get("memory"), t.get("mem_reservation"))
	if err != nil {
		return err
	}
	memoryMB, hardLimitMB := 0, 0
	switch {
	case limit == 0 && reserved == 0:
		memoryMB, hardLimitMB = defaultMemoryMB, defaultMemoryLimitMB
		t.unlimited = append(t.unlimited, t.service.name)
	case limit == 0:
		memoryMB, hardLimitMB = toMB(reserved), max(toMB(reserved), defaultMemoryLimitMB)
		t.unlimited = append(t.unlimited, t.service.name)
	case reserved == 0: // a limit reserves nothing in compose
		memoryMB, hardLimitMB = min(toMB(limit), defaultMemoryMB), toMB(limit)
	case reserved >= limit:
		memoryMB = toMB(limit)
	default:
		memoryMB, hardLimitMB = toMB(reserved), toMB(limit)
	}
	if hardLimitMB > memoryMB {
		t.config.Set("memory_hard_limit", hardLimitMB)
	}
	cpu, err := t.cpu(limits, reservations)
	if err != nil {
		return err
	}
	if pids := limits.get("pids"); pids != nil && t.get("pids_limit") == nil {
		n, err := pids.asInt()
		if err != nil {
			return err
		}
		if n > 0 {
			t.config.Set("pids_limit", n)
		}
	}
	t.reservedMB += memoryMB * t.service.count
	resources := t.body.Block("resources")
	resources.Set("cpu", cpu)
	resources.Set("memory", memoryMB)
	return nil
}

// firstBytes returns the first size that is there, or 0.
func firstBytes(values ...*value) (int64, error) {
	for _, v := range values {
		if v != nil {
			return v.asBytes()
		}
	}
	return 0, nil
}

const leastMemoryMB = 10 // the least that a task can have

func toMB(bytes int64) int {
	const mb = 1 << 20
	return max(int((bytes+mb-1)/mb), leastMemoryMB)
}

// cpu returns the CPU share of a task, in the unit of the cpu attribute.
func (t *task) cpu(limits, reservations *value) (int, error) {
	const byDefault = 100 // as of a job file without resources
	limit := limits.get("cpus")
	if limit == nil {
		limit = t.get("cpus")
	}
	if limit == nil && t.get("cpu_quota") != nil {
		limit = t.get("cpu_quota")
		quota, err := limit.asFloat()
		if err != nil {
			return 0, err
		}
		period := 100_000.0
		if v := t.get("cpu_period"); v != nil {
			if period, err = v.asFloat(); err != nil {
				return 0, err
			}
		}
		if quota <= 0 || period <= 0 {
			return byDefault, nil
		}
		limit = &value{at: limit.at, kind: scalar, text: strconv.FormatFloat(quota/period, 'f', 3, 64)}
	}
	if v := t.get("cpu_period"); v != nil && t.get("cpu_quota") == nil {
		t.Add(v.at, "cpu_period without cpu_quota has no counterpart")
	}
	cpus := func(v *value) (mhz int, err error) {
		if v == nil {
			return 0, nil
		}
		n, err := v.asFloat()
		if err != nil || n <= 0 {
			return 0, err
		}
		return min(max(int(n*cpuMHz), 1), math.MaxInt32), nil
	}
	limitMHz, err := cpus(limit)
	if err != nil {
		return 0, err
	}
	if limitMHz > 0 {
		t.Add(limit.at, "the limit of %s CPUs of %s is not kept: with cpu = %d in resources and cpu_hard_limit = true in config, the job reserves that much and is limited to it", limit.text, t.service.name, limitMHz)
	}
	if reserved, err := cpus(reservations.get("cpus")); err != nil || reserved > 0 {
		return reserved, err
	}
	if limitMHz > 0 {
		return min(limitMHz, byDefault), nil
	}
	if shares := t.get("cpu_shares"); shares != nil {
		n, err := shares.asInt()
		if err != nil {
			return 0, err
		}
		return max(n, 1), nil
	}
	return byDefault, nil
}

// warnOfDeploy warns of the parts of deploy that have no counterpart.
func (t *task) warnOfDeploy(deploy *value) {
	if deploy == nil {
		return
	}
	for _, key := range deploy.keys {
		v := deploy.fields[key]
		switch key {
		case "replicas", "restart_policy":
		case "mode":
			if v.text == "global" {
				t.Add(v.at, "mode global: the job has one container of %s for this machine", t.service.name)
			}
		case "resources":
			for _, part := range v.keys {
				for _, name := range v.fields[part].keys {
					if !slices.Contains([]string{"cpus", "memory"}, name) && !(part == "limits" && name == "pids") {
						t.Add(v.fields[part].fields[name].at, "%s of resources has no counterpart", name)
					}
				}
			}
		default:
			t.Add(v.at, "%s of deploy has no counterpart", key)
		}
	}
}

// asInt returns a whole number.
func (v *value) asInt() (int, error) {
	n, err := strconv.ParseInt(v.text, 0, 32)
	if v.kind != scalar || err != nil {
		return 0, importer.Errorf(v.at, "%s is no whole number", describe(v))
	}
	return int(n), nil
}

func (v *value) asFloat() (float64, error) {
	n, err := strconv.ParseFloat(v.text, 64)
	if v.kind != scalar || err != nil || math.IsNaN(n) || math.Abs(n) > 1e9 {
		return 0, importer.Errorf(v.at, "%s is no number", describe(v))
	}
	return n, nil
}

// asBytes returns a size such as 512, 64k, 1.5g or 512MiB.
func (v *value) asBytes() (int64, error) {
	text := strings.ToLower(strings.TrimSpace(v.text))
	number := strings.TrimRight(text, "bkmgti ")
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(text[len(number):]), "b"), "i")
	n, err := strconv.ParseFloat(number, 64)
	i := slices.Index([]string{"", "k", "m", "g", "t"}, unit)
	const most = 1 << 50
	if v.kind != scalar || err != nil || i < 0 || !(n >= 0) || n*math.Pow(1024, float64(i)) > most {
		return 0, importer.Errorf(v.at, "%s is no size such as 512m", describe(v))
	}
	return int64(n * math.Pow(1024, float64(i))), nil
}

// parseDuration parses a duration such as 1m30s. A number without a unit is seconds.
func parseDuration(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("the duration is negative")
	}
	return d, err
}

// splitWords splits a command as compose does: at spaces, with quotes and backslashes of a shell, without its other syntax.
func splitWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	runes := []rune(text)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case quote == '\'':
			if r == '\'' {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\\' && i+1 < len(runes):
			i++
			if quote == '"' && !strings.ContainsRune("\"\\$`\n", runes[i]) {
				word.WriteRune('\\')
			}
			if runes[i] != '\n' {
				word.WriteRune(runes[i])
			}
			inWord = true
		case quote == '"':
			if r == '"' {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t' || r == '\n' || r == '\r':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c is not closed", quote)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
