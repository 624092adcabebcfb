package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec/confined"
)

// jobParser parses the text of a job file. It returns a confined.ParseError for an error in the text.
// confined.ChildProcessParser implements it.
type jobParser interface {
	Parse(ctx context.Context, text, hclVariables string) (*api.Job, error)
	// PlaceConfigFaults returns a confined.ParseError with the faults in config blocks of the text, each with its position.
	PlaceConfigFaults(ctx context.Context, text, hclVariables string, faults []jobspec.ConfigFault) error
}

func (j *jobWriteHandler) parse(r *request) (any, error) {
	var body struct {
		JobHCL, Variables string
		Canonicalize      bool
	}
	if err := r.decodeBody(&body, maxJobBytes, false); err != nil {
		return nil, err
	}
	if body.JobHCL == "" {
		return nil, badRequestError("Job spec is empty")
	}
	checksConfig, err := r.boolParam("check_config")
	if err != nil {
		return nil, err
	}
	job, err := j.jobParser.Parse(r.Context(), body.JobHCL, body.Variables)
	if err == nil && checksConfig {
		if faults := j.checker.configFaults(r.Context(), job); len(faults) > 0 {
			err = j.jobParser.PlaceConfigFaults(r.Context(), body.JobHCL, body.Variables, faults)
		}
	}
	var textErr *confined.ParseError
	if errors.As(err, &textErr) {
		return nil, badRequestError("Failed to parse job: " + textErr.Error())
	}
	if err != nil {
		return nil, err
	}
	if body.Canonicalize {
		job.Canonicalize()
	}
	// The reply has the JSON format of Nomad's Go client, which differs from the format of servers.
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(job); err != nil {
		return nil, err
	}
	return json.RawMessage(bytes.TrimSpace(b.Bytes())), nil
}
