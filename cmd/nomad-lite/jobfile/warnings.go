package jobfile

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/terminal"
)

// PrintWarnings prints the warnings of Nomad's API about a job, if there are any.
func PrintWarnings(w io.Writer, warnings string) {
	if text := FormatWarnings(warnings); text != "" {
		fmt.Fprintf(w, "Job Warnings:\n%s\n\n", terminal.SanitizeText([]byte(text), false))
	}
}

var (
	warningCountPattern = regexp.MustCompile(`^\d+ warnings?:$`)
	warningPlacePattern = regexp.MustCompile(`^(Group|Task) ("[^"]*") has warnings: \d+ errors? occurred:$`)
)

// FormatWarnings formats warnings of Nomad's API for people: each warning once, in one line, with the
// groups and tasks that it is about.
func FormatWarnings(warnings string) string {
	var texts []string
	places := make(map[string][]string) // by text
	group, task := "", ""
	for line := range strings.Lines(warnings) {
		if strings.HasPrefix(line, "* ") { // a warning about the job, or the head of the warnings about a group
			group, task = "", ""
		}
		line = strings.TrimPrefix(strings.TrimSpace(line), "* ")
		place := warningPlacePattern.FindStringSubmatch(line)
		switch {
		case line == "" || warningCountPattern.MatchString(line):
		case place != nil && place[1] == "Group":
			group, task = "group "+place[2], ""
		case place != nil:
			task = ", task " + place[2]
		default:
			if !slices.Contains(texts, line) {
				texts = append(texts, line)
			}
			if group+task != "" {
				places[line] = append(places[line], group+task)
			}
		}
	}
	for i, text := range texts {
		texts[i] = "* " + text
		if at := places[text]; len(at) > 0 {
			texts[i] += " (" + strings.Join(slices.Compact(at), "; ") + ")"
		}
	}
	return strings.Join(texts, "\n")
}
