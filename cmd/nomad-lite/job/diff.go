package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// The types of change in a diff.
const (
	diffNone    = "None"
	diffAdded   = "Added"
	diffDeleted = "Deleted"
	diffEdited  = "Edited"
)

// markByDiffType has the mark in front of a line for each type of change, as in Nomad's output.
var markByDiffType = map[string]output.ColouredCell{
	diffAdded:   {ColourEscape: terminal.ColourGreen, Text: "+"},
	diffDeleted: {ColourEscape: terminal.ColourRed, Text: "-"},
	diffEdited:  {ColourEscape: terminal.ColourYellow, Text: "+/-"},
}

// colourByPlanUpdate has the colours for the kinds of updates that the scheduler plans for allocations.
var colourByPlanUpdate = map[string]string{
	"create":                terminal.ColourGreen,
	"canary":                terminal.ColourGreen,
	"destroy":               terminal.ColourRed,
	"migrate":               terminal.ColourYellow,
	"in-place update":       terminal.ColourYellow,
	"create/destroy update": terminal.ColourYellow,
}

// diffPage writes the diff of a job to a page. For a group or task that was added or removed it writes only
// the name, unless showsAddedAndRemovedInFull is set.
type diffPage struct {
	*output.Page
	showsAddedAndRemovedInFull bool
}

func (d diffPage) writeJob(diff *api.JobDiff) {
	d.writeNameLine(0, diff.Type, "Job", diff.ID, "")
	d.writeFieldsIfEditedOrShowAll(2, diff.Type, diff.Fields, diff.Objects)
	for _, group := range diff.TaskGroups {
		if group != nil {
			d.writeGroup(group)
		}
	}
}

func (d diffPage) writeGroup(group *api.TaskGroupDiff) {
	var updateCounts []string
	for _, name := range slices.Sorted(maps.Keys(group.Updates)) {
		updateCounts = append(updateCounts, d.Colourize(colourByPlanUpdate[name], d.FormatCell(fmt.Sprintf("%d %s", group.Updates[name], name))))
	}
	d.writeNameLine(0, group.Type, "Task Group", group.Name, strings.Join(updateCounts, ", "))
	d.writeFieldsIfEditedOrShowAll(2, group.Type, group.Fields, group.Objects)
	for _, task := range group.Tasks {
		if task == nil {
			continue
		}
		var annotations []string
		for _, note := range task.Annotations {
			annotations = append(annotations, d.Colourize(colourByPlanUpdate[strings.TrimPrefix(note, "forces ")], d.FormatCell(note)))
		}
		d.writeNameLine(2, task.Type, "Task", task.Name, strings.Join(annotations, ", "))
		d.writeFieldsIfEditedOrShowAll(4, task.Type, task.Fields, task.Objects)
	}
}

// writeNameLine writes the line with the mark and the name of a job, a group or a task.
func (d diffPage) writeNameLine(indent int, changeType, noun, name, notes string) {
	mark := d.formatChangeMark(changeType, 0)
	if notes != "" {
		notes = " (" + notes + ")"
	}
	fmt.Fprintf(&d.Text, "%s%s%s: %q%s\n", strings.Repeat(" ", indent), mark, d.Colourize(terminal.ColourBold, noun), d.FormatCell(name), notes)
}

// formatChangeMark returns the mark for a type of change, padded to width. A width of 0 means no padding.
func (d diffPage) formatChangeMark(changeType string, width int) string {
	mark, ok := markByDiffType[changeType]
	if !ok && width == 0 {
		return ""
	}
	return d.Colourize(mark.ColourEscape, mark.Text) + strings.Repeat(" ", max(width, len(mark.Text)+1)-len(mark.Text))
}

// writeFieldsIfEditedOrShowAll writes the fields and objects of a job, a group or a task, if that was edited or
// showsAddedAndRemovedInFull is set.
func (d diffPage) writeFieldsIfEditedOrShowAll(indent int, changeType string, fields []*api.FieldDiff, objects []*api.ObjectDiff) {
	if changeType == diffEdited || d.showsAddedAndRemovedInFull {
		d.writeFields(indent, fields, objects)
	}
}

func (d diffPage) writeFields(indent int, fields []*api.FieldDiff, objects []*api.ObjectDiff) {
	fields, objects = withoutEmptyFields(fields), withoutEmptyObjects(objects)
	marks, names := 2, 0
	for _, f := range fields {
		names = max(names, len(f.Name))
		if f.Type == diffEdited {
			marks = 4
		}
	}
	for _, o := range objects {
		if o.Type == diffEdited {
			marks = 4
		}
	}
	space := strings.Repeat(" ", indent)
	for _, f := range fields {
		if f.Type == diffEdited && (strings.Contains(f.Old, "\n") || strings.Contains(f.New, "\n")) {
			fmt.Fprintf(&d.Text, "%s%s%s%s\n", space, d.formatChangeMark(f.Type, marks), d.FormatCell(f.Name)+":", d.formatAnnotations(f.Annotations))
			d.writeLineDiff(indent+marks+2, f.Old, f.New)
			continue
		}
		fmt.Fprintf(&d.Text, "%s%s%-*s %s%s\n", space, d.formatChangeMark(f.Type, marks), names+1, d.FormatCell(f.Name)+":", d.formatOldAndNewValue(f), d.formatAnnotations(f.Annotations))
	}
	for _, o := range objects {
		fmt.Fprintf(&d.Text, "%s%s%s {\n", space, d.formatChangeMark(o.Type, marks), d.FormatCell(o.Name))
		d.writeFields(indent+marks, o.Fields, o.Objects)
		fmt.Fprintf(&d.Text, "%s%s}\n", space, strings.Repeat(" ", marks))
	}
}

// writeLineDiff writes the lines of a text that have changed, with those around them.
func (d diffPage) writeLineDiff(indent int, before, after string) {
	const headerLines = 3
	all := strings.Split(strings.TrimSuffix(string(diff.Diff("before", []byte(before), "after", []byte(after))), "\n"), "\n")
	for _, line := range all[min(headerLines, len(all)):] {
		colour := ""
		switch {
		case strings.HasPrefix(line, "+"):
			colour = markByDiffType[diffAdded].ColourEscape
		case strings.HasPrefix(line, "-"):
			colour = markByDiffType[diffDeleted].ColourEscape
		}
		fmt.Fprintf(&d.Text, "%s%s\n", strings.Repeat(" ", indent), d.Colourize(colour, string(terminal.SanitizeText([]byte(line), false))))
	}
}

// withoutEmptyFields returns the fields that have a value before or after the change.
func withoutEmptyFields(fields []*api.FieldDiff) []*api.FieldDiff {
	return slices.DeleteFunc(slices.Clone(fields), func(f *api.FieldDiff) bool { return f == nil || f.Old == "" && f.New == "" })
}

// withoutEmptyObjects returns the objects that were added, removed or edited, and the unchanged objects that
// have a field with a value.
func withoutEmptyObjects(objects []*api.ObjectDiff) []*api.ObjectDiff {
	return slices.DeleteFunc(slices.Clone(objects), func(o *api.ObjectDiff) bool {
		return o == nil || o.Type == diffNone && len(withoutEmptyFields(o.Fields))+len(withoutEmptyObjects(o.Objects)) == 0
	})
}

func (d diffPage) formatOldAndNewValue(f *api.FieldDiff) string {
	switch f.Type {
	case diffAdded:
		return fmt.Sprintf("%q", f.New)
	case diffEdited:
		return fmt.Sprintf("%q => %q", f.Old, f.New)
	}
	return fmt.Sprintf("%q", f.Old)
}

func (d diffPage) formatAnnotations(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return " (" + d.FormatCell(strings.Join(notes, ", ")) + ")"
}
