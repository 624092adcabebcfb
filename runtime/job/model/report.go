package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// JobFault is an error in a job: a sentence, or a block with further faults.
type JobFault struct {
	// Path is the block's path, in the form of jobspec.ParsedFile.InnermostRange: the block's type, then its label (if it has one)
	// or its index (if there may be several), and so on. The last element may be an attribute.
	Path []string
	// Text is Nomad's error text. If there are causes, it is the prefix of their list.
	Text string

	nestedFaults []*JobFault
	hint         func() string
}

// Error returns the text, followed by the causes in the list format Nomad clients use.
func (f *JobFault) Error() string {
	if len(f.nestedFaults) == 0 {
		return f.Text
	}
	list := faultListText(f.nestedFaults)
	if f.Text == "" {
		return list
	}
	return f.Text + " " + list
}

// Hint returns a suggestion that continues the text, or "". It is not part of the error.
func (f *JobFault) Hint() string {
	if f.hint == nil {
		return ""
	}
	return f.hint()
}

// Unwrap returns the faults this fault contains.
func (f *JobFault) Unwrap() []error {
	errs := make([]error, len(f.nestedFaults))
	for i, cause := range f.nestedFaults {
		errs[i] = cause
	}
	return errs
}

// LeafFaults returns the single errors in a result of Validate, in check order, each with its own block's path.
func LeafFaults(err error) []*JobFault {
	var f *JobFault
	if !errors.As(err, &f) {
		return nil
	}
	return f.leafFaults()
}

func (f *JobFault) leafFaults() []*JobFault {
	if len(f.nestedFaults) == 0 {
		return []*JobFault{f}
	}
	var allLeaves []*JobFault
	for _, cause := range f.nestedFaults {
		allLeaves = append(allLeaves, cause.leafFaults()...)
	}
	return allLeaves
}

func faultListText(faults []*JobFault) string {
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = f.Error()
	}
	return FormatErrorList(lines)
}

// FormatErrorList formats errors as Nomad's API responses do. Tools match this text.
func FormatErrorList(lines []string) string {
	head := "1 error occurred:"
	if len(lines) != 1 {
		head = fmt.Sprintf("%d errors occurred:", len(lines))
	}
	var b strings.Builder
	b.WriteString(head)
	for _, line := range lines {
		b.WriteString("\n\t* ")
		b.WriteString(line)
	}
	b.WriteString("\n\n")
	return b.String()
}

// A faultReport collects one block's faults.
type faultReport struct {
	path   []string
	faults *[]*JobFault
}

func newFaultReport() *faultReport { return &faultReport{faults: new([]*JobFault)} }

// atPath returns a report that adds its faults to the same list, with a path inside the block.
func (r *faultReport) atPath(path ...string) *faultReport {
	return &faultReport{slices.Concat(r.path, path), r.faults}
}

// nestedReport starts an inner block's report. addNested adds its faults to the outer report.
func (r *faultReport) nestedReport(path ...string) *faultReport {
	return &faultReport{slices.Concat(r.path, path), new([]*JobFault)}
}

// addFault adds a fault to the block.
func (r *faultReport) addFault(format string, args ...any) *JobFault {
	f := &JobFault{Path: r.path, Text: fmt.Sprintf(format, args...)}
	*r.faults = append(*r.faults, f)
	return f
}

// addNested adds an inner block's faults as a list with a prefix. An empty prefix makes a bare list.
func (r *faultReport) addNested(inner *faultReport, format string, args ...any) {
	if len(*inner.faults) > 0 {
		*r.faults = append(*r.faults, &JobFault{Path: inner.path, Text: fmt.Sprintf(format, args...), nestedFaults: *inner.faults})
	}
}

// errOrNil returns all the report's faults as one error, or nil if there are none.
func (r *faultReport) errOrNil() error {
	if len(*r.faults) == 0 {
		return nil
	}
	return &JobFault{Path: r.path, nestedFaults: *r.faults}
}
