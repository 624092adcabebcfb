package jobspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// ErrVariablesWithJSON is Nomad's error for -json with -var or -var-file.
//
//lint:ignore ST1005 Nomad's text
var ErrVariablesWithJSON = errors.New("cannot use variables with JSON files.")

// ParseJSON parses a job in the JSON form of Nomad's HTTP API. The text is the job itself, or an object whose member
// "Job" is the job. It ignores unknown keys. Durations are whole nanoseconds.
func ParseJSON(text []byte) (*api.Job, error) {
	if len(text) > MaxTextSize {
		return nil, fmt.Errorf("%s", textTooLargeDiagnostics(len(text), "input.json")[0].Detail)
	}
	if diags := nesting.CheckJSON(text, "input.json"); diags.HasErrors() {
		return nil, diags
	}
	var jobEnvelope struct{ Job *api.Job }
	if err := unmarshalJSONWithPosition(text, &jobEnvelope); err != nil {
		//lint:ignore ST1005 Nomad's text
		return nil, fmt.Errorf("Failed to parse JSON job: %w", err)
	}
	if jobEnvelope.Job != nil {
		return jobEnvelope.Job, nil
	}
	job := &api.Job{}
	if err := unmarshalJSONWithPosition(text, job); err != nil {
		//lint:ignore ST1005 Nomad's text
		return nil, fmt.Errorf("Failed to parse JSON job: %w", err)
	}
	return job, nil
}

func unmarshalJSONWithPosition(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		at := nesting.Range(text, "", min(int(max(0, syntax.Offset-1)), len(text)), min(int(syntax.Offset), len(text))).Start
		return fmt.Errorf("line %d, column %d: %w", at.Line, at.Column, err)
	}
	return err
}

// EncodeJobRunOutput writes the job in the format of `job run -output`.
func EncodeJobRunOutput(w io.Writer, job *api.Job) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "    ")
	if err := encoder.Encode(struct{ Job *api.Job }{job}); err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}
