package template

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
)

// rendering identifies an output by its content and by what it was rendered from. Functions such as timestamp give another output
// for the same inputs, which is not a change.
type rendering struct {
	Inputs string `json:"inputs2"` // hash of the text of the template and of the data that it has read
	Output string `json:"output"`  // hash of the output
}

// storedRenderings records the renderings on disk, by destination, in a file in the private directory of the task. So the next
// process of the hook finds out whether the inputs have changed since.
type storedRenderings struct {
	file   rootedPath
	byDest map[string]rendering
}

func (s *storedRenderings) load() {
	text, err := s.file.readFile()
	if err != nil || json.Unmarshal(text, &s.byDest) != nil {
		s.byDest = nil // there is none, or an earlier version has rendered the files: their contents are compared
	}
}

// store adds renderings. After an error the file has the earlier ones: a later process of the hook may then render a template again.
func (s *storedRenderings) store(added map[string]rendering) {
	if len(added) == 0 {
		return
	}
	byDest := maps.Clone(s.byDest)
	if byDest == nil {
		byDest = make(map[string]rendering)
	}
	maps.Copy(byDest, added)
	s.byDest = byDest
	if text, err := json.Marshal(byDest); err == nil {
		_ = s.file.replaceFileAtomically(text, 0o600, -1, -1)
	}
}

func hashText(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// hashInputs returns a hash of a template and of the data that it has read.
func hashInputs(r *evaluate.Request, usedEnv []string) string {
	inputs := struct {
		LeftDelim, RightDelim string
		ErrMissingKey         bool
		Env                   map[string]string
		Data                  []evaluate.Datum
	}{r.LeftDelim, r.RightDelim, r.ErrMissingKey, make(map[string]string), slices.Clone(r.Data)}
	for _, name := range usedEnv {
		if value, ok := r.Env[name]; ok {
			inputs.Env[name] = value
		}
	}
	slices.SortFunc(inputs.Data, func(a, b evaluate.Datum) int {
		return cmp.Or(cmp.Compare(a.Query.Kind, b.Query.Kind), cmp.Compare(a.Query.Namespace, b.Query.Namespace),
			cmp.Compare(a.Query.Name, b.Query.Name), cmp.Compare(a.Query.Choose, b.Query.Choose), cmp.Compare(a.Query.Region, b.Query.Region))
	})
	// JSON has the same replacement for all bytes that are not UTF-8, so the texts that can have some are hashed as they are.
	hash := sha256.New()
	fmt.Fprintf(hash, "%q", r.Text)
	for i := range inputs.Data {
		value := &inputs.Data[i].Value
		fmt.Fprintf(hash, "%q", value.Text)
		value.Text = ""
	}
	_ = json.NewEncoder(hash).Encode(inputs) // strings, numbers and booleans can always be encoded
	return hex.EncodeToString(hash.Sum(nil))
}
