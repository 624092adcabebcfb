package metrics

import (
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
)

const promisesFile = "metrics.txt"

// promiseLines returns a line for each metric, and one for each of its labels.
func promiseLines(definitions []*Definition) []string {
	var lines []string
	for _, d := range definitions {
		value := d.Kind.String()
		if d.Unit != "" {
			value += " in " + d.Unit
		}
		lines = append(lines, "metric "+d.Name+": "+value)
		for _, label := range d.Labels {
			lines = append(lines, "metric "+d.Name+", label "+label)
		}
	}
	return lines
}

func TestReferenceMetricPromises(t *testing.T) {
	promises.Check(t, promisesFile, promiseLines(Definitions))
}

func TestChangedMetricsBreakPromises(t *testing.T) {
	const name = "nomad.nomad.job_status.dead"
	at := slices.IndexFunc(Definitions, func(d *Definition) bool { return d.Name == name })
	withChange := func(edit func(*Definition)) []string {
		changed := *Definitions[at]
		edit(&changed)
		definitions := slices.Clone(Definitions)
		definitions[at] = &changed
		return promiseLines(definitions)
	}
	promises.CheckOnly(t, promisesFile, withChange(func(d *Definition) { d.Kind = Counter }), "metric "+name)
	promises.CheckOnly(t, promisesFile, withChange(func(d *Definition) { d.Labels = nil }), "metric "+name+", label host")

	unlabelled := slices.IndexFunc(Definitions, func(d *Definition) bool { return len(d.Labels) == 0 })
	removed := slices.Delete(slices.Clone(Definitions), unlabelled, unlabelled+1)
	promises.CheckOnly(t, promisesFile, promiseLines(removed), "metric "+Definitions[unlabelled].Name)
}
