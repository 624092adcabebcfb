package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// UnknownGroupPortLabelFaults returns the group services and checks that name a port label without a port in the group's network.
// Nomad accepts such a job and registers the service without a port. A number is a valid port, and a label with ${…} is resolved
// only when the task starts.
//
// Validate checks task services.
func UnknownGroupPortLabelFaults(job *api.Job) []*JobFault {
	r := newFaultReport()
	for _, g := range job.TaskGroups {
		if g == nil {
			continue
		}
		known := portLabelsOfGroupAndTask(g, &api.Task{})
		for i, s := range g.Services {
			if s == nil {
				continue
			}
			at := r.atPath("group", pointer.Value(g.Name), "service", positionText(i))
			if reason := unknownPortLabelReason(fmt.Sprintf("service %q", s.Name), s.PortLabel, known); reason != "" {
				at.atPath("port").addFault("%s", reason)
			}
			for k, c := range s.Checks {
				if c.PortLabel == s.PortLabel {
					continue
				}
				if reason := unknownPortLabelReason(fmt.Sprintf("check %q of service %q", c.Name, s.Name), c.PortLabel, known); reason != "" {
					at.atPath("check", positionText(k), "port").addFault("%s", reason)
				}
			}
		}
	}
	return *r.faults
}

// unknownPortLabelReason returns the reason why the label is unknown, or "".
func unknownPortLabelReason(objectText, label string, known map[string]bool) string {
	if label == "" || isInteger(label) || strings.Contains(label, "${") || known[label] {
		return ""
	}
	return fmt.Sprintf("%s: port label %q does not exist%s", objectText, label, portLabelHint(label, known))
}

// maxPortHints and maxLabelLengthForHint limit the comparisons with an unknown label.
const (
	maxPortHints          = 100
	maxLabelLengthForHint = 100
)

// portLabelHint suggests a label, or lists the known ones.
func portLabelHint(label string, known map[string]bool) string {
	labels := slices.Sorted(maps.Keys(known))
	labels = labels[:min(len(labels), maxPortHints)]
	if len(labels) == 0 {
		return fmt.Sprintf(": the group has no ports, write port %q {} in its network block", label)
	}
	if near := ClosestSimilarName(label, labels); near != "" {
		return fmt.Sprintf(". Did you mean %q?", near)
	}
	for i, l := range labels {
		labels[i] = fmt.Sprintf("%q", l)
	}
	return ": the group has " + strings.Join(labels, ", ")
}

// ClosestSimilarName returns the name with the smallest edit distance, or "" if every distance is greater than two and than a
// third of name's length.
func ClosestSimilarName(name string, names []string) string {
	if len(name) > maxLabelLengthForHint {
		return ""
	}
	best, least := "", max(len(name)/3, 2)+1
	for _, n := range names {
		if len(n) > maxLabelLengthForHint {
			continue
		}
		if d := editDistance(name, n); d < least && d < len(n) {
			best, least = n, d
		}
	}
	return best
}

// editDistance returns the number of bytes that must be added, removed or replaced to change one text into the other.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
