package jobfile

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// PrintAPIWarnings prints the warnings of Nomad's API about a job, if there are any.
func PrintAPIWarnings(w io.Writer, apiWarnings string) {
	if text := FormatAPIWarnings(apiWarnings); text != "" {
		fmt.Fprintf(w, "Job Warnings:\n%s\n\n", terminal.SanitizeText([]byte(text), false))
	}
}

// PrintAPIWarningsWithPositions prints each distinct warning of Nomad's API about a canonical job. A warning that this
// program's own validation knows is printed with its position in the job file.
func (fi *File) PrintAPIWarningsWithPositions(w io.Writer, apiWarnings string) error {
	faults := make(map[string][]*model.JobFault) // text -> warnings with this text
	missingVariables := model.MissingVariableFaults(fi.Job, func(string) bool { return false })
	csiVolumes := model.CSIVolumeFaults(fi.Job, func(string) bool { return true })
	for _, f := range slices.Concat(model.LeafWarnings(fi.Job, model.NewDefaultSchedulerConfig()), missingVariables, csiVolumes) {
		faults[f.Text] = append(faults[f.Text], f)
	}
	var diags hcl.Diagnostics
	var unplaced strings.Builder
	for _, warning := range parseAPIWarnings(apiWarnings) {
		line := warning.String()
		if found := faults[warning.text]; len(found) > 0 && fi.jsonFilePath == "" {
			if len(warning.groupsAndTasks) < 2 { // the position in the file already names the group or task
				line = warning.text
			}
			diags = append(diags, fi.NewWarningDiagnostic(found[0].Path, line))
			continue
		}
		fmt.Fprintf(&unplaced, "* %s\n", terminal.SanitizeText([]byte(line), false))
	}
	if len(diags) == 0 && unplaced.Len() == 0 {
		return nil
	}
	fmt.Fprintf(w, "Job Warnings:\n%s", &unplaced)
	sortByPosition(diags)
	if err := jobspec.WriteDiagnostics(w, diags, fi.Parsed.SourceTextByFileName); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return nil
}

// apiWarning is one warning about a job in an answer of Nomad's API, with the groups and tasks that it is about.
type apiWarning struct {
	text           string
	groupsAndTasks []string
}

func (w apiWarning) String() string {
	if len(w.groupsAndTasks) == 0 {
		return w.text
	}
	return w.text + " (" + strings.Join(w.groupsAndTasks, "; ") + ")"
}

var (
	warningCountPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\d+ warnings?:$`) })
	warningPlacePattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(Group|Task) ("[^"]*") has warnings: \d+ errors? occurred:$`)
	})
	warningHeadPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`: \d+ errors? occurred:$`) })
)

// FormatAPIWarnings formats warnings of Nomad's API for people: each warning once, in one line, with the
// groups and tasks that it is about.
func FormatAPIWarnings(apiWarnings string) string {
	var lines []string
	for _, w := range parseAPIWarnings(apiWarnings) {
		lines = append(lines, "* "+w.String())
	}
	return strings.Join(lines, "\n")
}

// parseAPIWarnings returns the distinct warnings in a nested list of Nomad's API.
func parseAPIWarnings(text string) []apiWarning {
	var warnings []apiWarning
	group, task := "", ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "* ") { // a warning about the job, or the head of the warnings about a group
			group, task = "", ""
		}
		line = strings.TrimPrefix(strings.TrimSpace(line), "* ")
		place := warningPlacePattern().FindStringSubmatch(line)
		switch {
		case line == "" || warningCountPattern().MatchString(line):
		case place != nil && place[1] == "Group":
			group, task = "group "+place[2], ""
		case place != nil:
			task = ", task " + place[2]
		case warningHeadPattern().MatchString(line): // the warnings of the list follow
		default:
			i := slices.IndexFunc(warnings, func(w apiWarning) bool { return w.text == line })
			if i < 0 {
				i = len(warnings)
				warnings = append(warnings, apiWarning{text: line})
			}
			if at := group + task; at != "" && !slices.Contains(warnings[i].groupsAndTasks, at) {
				warnings[i].groupsAndTasks = append(warnings[i].groupsAndTasks, at)
			}
		}
	}
	return warnings
}
