package redact

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Placeholder replaces each secret.
const Placeholder = "<redacted>"

// minSharedLen is the length in bytes of the shortest value that a parent removes: a text about something else could
// contain a shorter value by chance.
const minSharedLen = 6

// minPrefixLen is the length in bytes of the shortest beginning of a value that is removed from the end of a text, which
// may have been truncated there.
const minPrefixLen = 8

// indexLen is the length of the keys of the index of values.
const indexLen = 4

// Values is a set of secret values. The zero value is an empty set. All methods may be called concurrently, and on nil,
// which is an empty set to which nothing is added. They do not block for long: Text needs time proportional to the length
// of the text and the number of values that begin with the same four bytes.
type Values struct {
	parent    *Values
	minLength int

	mu           sync.RWMutex
	countByValue map[string]int      // how many children, and this set, have added the value
	formsByStart map[string][]string // written forms of the values, by their first indexLen bytes, or whole if shorter
}

// NewShared returns a set to which its children add values. It ignores values that are shorter than six bytes.
func NewShared() *Values { return &Values{minLength: minSharedLen} }

// NewChild returns an empty set whose values are also added to v, until [Values.Close].
func (v *Values) NewChild() *Values { return &Values{parent: v} }

// Add adds values, and the single lines of values with several lines, because logs are made of lines. A value that the
// set has is not added again. Empty values are ignored.
func (v *Values) Add(values ...string) {
	if v == nil {
		return
	}
	for _, value := range values {
		v.add(value)
		if strings.Contains(value, "\n") {
			for line := range strings.Lines(value) {
				if line = strings.TrimSpace(line); len(line) >= minPrefixLen {
					v.add(line)
				}
			}
		}
	}
}

func (v *Values) add(value string) {
	if value == "" || len(value) < v.minLength {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.parent != nil && v.countByValue[value] > 0 {
		return // counted once by the parent
	}
	if v.countByValue == nil {
		v.countByValue, v.formsByStart = make(map[string]int), make(map[string][]string)
	}
	if v.countByValue[value]++; v.countByValue[value] == 1 {
		for _, form := range writtenForms(value) {
			v.formsByStart[indexKey(form)] = append(v.formsByStart[indexKey(form)], form)
		}
	}
	if v.parent != nil {
		v.parent.add(value)
	}
}

// IsEmpty reports whether v has no values.
func (v *Values) IsEmpty() bool {
	if v == nil {
		return true
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.countByValue) == 0
}

// Close removes the values of v from its parent, and v from then on adds none to it. v still removes them from texts.
func (v *Values) Close() {
	if v == nil || v.parent == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for value := range v.countByValue {
		v.parent.remove(value)
	}
	v.parent = nil
}

func (v *Values) remove(value string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.countByValue[value] == 0 {
		return
	}
	if v.countByValue[value]--; v.countByValue[value] > 0 {
		return
	}
	delete(v.countByValue, value)
	for _, form := range writtenForms(value) {
		key := indexKey(form)
		forms := v.formsByStart[key]
		at := slices.Index(forms, form) // add has added it
		if forms = slices.Delete(forms, at, at+1); len(forms) == 0 {
			delete(v.formsByStart, key)
		} else {
			v.formsByStart[key] = forms
		}
	}
}

// writtenForms returns the value as programs write it into texts: as it is, in the quotes of Go and of JSON, in a URL, and
// in base64. The forms differ.
func writtenForms(value string) []string {
	forms := []string{value}
	add := func(form string) {
		if !slices.Contains(forms, form) {
			forms = append(forms, form)
		}
	}
	quoted := strconv.Quote(value)
	add(quoted[1 : len(quoted)-1])
	ascii := strconv.QuoteToASCII(value)
	add(ascii[1 : len(ascii)-1])
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	for _, escapeHTML := range []bool{false, true} {
		text.Reset()
		encoder.SetEscapeHTML(escapeHTML)
		encoder.Encode(value) // a string is always encoded
		inJSON := strings.TrimSuffix(text.String(), "\n")
		add(inJSON[1 : len(inJSON)-1])
	}
	add(url.QueryEscape(value))
	add(url.PathEscape(value))
	add(strings.TrimPrefix(url.UserPassword("", value).String(), ":"))
	if len(value) >= indexLen {
		add(base64.RawStdEncoding.EncodeToString([]byte(value)))
		add(base64.RawURLEncoding.EncodeToString([]byte(value)))
	}
	return forms
}

func indexKey(form string) string { return form[:min(len(form), indexLen)] }

// Text returns the text with [Placeholder] in place of each value, and of the beginning of a value at the end of the text, or before
// an ellipsis at its end. Values that overlap are replaced by one Placeholder.
func (v *Values) Text(text string) string {
	redacted := v.replace(text)
	if cut, ok := strings.CutSuffix(redacted, "…"); ok { // a caller has truncated the text
		return v.replace(cut) + "…"
	}
	return redacted
}

func (v *Values) replace(text string) string {
	if v == nil || text == "" {
		return text
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if len(v.countByValue) == 0 {
		return text
	}
	var redacted strings.Builder
	kept := 0            // end of the text that redacted has
	begin, end := -1, -1 // the values that are found and not yet replaced
	replace := func() {
		if begin >= 0 {
			redacted.WriteString(text[kept:begin])
			redacted.WriteString(Placeholder)
			kept, begin = end, -1
		}
	}
	for i := range len(text) {
		if begin >= 0 && i >= end {
			replace()
		}
		if n := v.matchLen(text[i:]); n > 0 {
			if begin < 0 {
				begin, end = i, i
			}
			end = max(end, i+n)
		}
	}
	replace()
	if kept == 0 {
		return text
	}
	redacted.WriteString(text[kept:])
	return redacted.String()
}

// matchLen returns the length of the longest form with which the text begins, or of the text if it is the beginning of a
// form; 0 if there is none. The caller holds mu.
func (v *Values) matchLen(text string) (longest int) {
	for n := min(indexLen, len(text)); n > 0; n-- {
		for _, form := range v.formsByStart[text[:n]] {
			switch {
			case len(form) > longest && strings.HasPrefix(text, form):
				longest = len(form)
			case len(text) > longest && len(text) >= minPrefixLen && strings.HasPrefix(form, text):
				longest = len(text)
			}
		}
	}
	return longest
}

// Writer returns a writer that redacts what it writes to w. Each call of Write must have whole lines, because a value that
// two calls share is not found.
func (v *Values) Writer(w io.Writer) io.Writer { return writer{v, w} }

type writer struct {
	values *Values
	w      io.Writer
}

func (w writer) Write(b []byte) (int, error) {
	text := string(b)
	redacted := w.values.Text(text)
	if redacted == text {
		return w.w.Write(b)
	}
	if _, err := io.WriteString(w.w, redacted); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Error returns an error that wraps err, and whose text is redacted. It returns err if its text has no value, and nil for
// nil.
func (v *Values) Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	redacted := v.Text(text)
	if redacted == text {
		return err
	}
	return &redactedError{err, redacted}
}

type redactedError struct {
	err  error
	text string
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }
