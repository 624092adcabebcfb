package httpapi

import (
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func (jo *jobReadHandler) versions(r *request) (any, error) {
	diffs, err := r.boolParam("diffs")
	if err != nil {
		return nil, err
	}
	base, err := r.diffBaseSelector()
	if err != nil {
		return nil, err
	}
	return r.blockingQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		versions := s.JobVersions(ws, r.namespace, r.pathID)
		if len(versions) == 0 {
			return nil, s.LatestTableIndex(ws, store.Jobs), notFoundError("job versions not found")
		}
		answer := struct {
			Versions []*api.Job
			Diffs    []*api.JobDiff
			Authors  map[uint64]state.Author `json:",omitempty"` // by version, if its client had an ACL token; an addition to Nomad's API
			replyMeta
		}{Versions: versions}
		for _, v := range versions {
			answer.Index = max(answer.Index, pointer.Value(v.ModifyIndex))
			if a := s.JobVersionAuthor(ws, r.namespace, r.pathID, *v.Version); a != (state.Author{}) {
				if answer.Authors == nil {
					answer.Authors = make(map[uint64]state.Author)
				}
				answer.Authors[*v.Version] = a
			}
		}
		answer.KnownLeader = true
		if diffs {
			if answer.Diffs, err = versionDiffs(versions, base); err != nil {
				return nil, answer.Index, err
			}
		}
		return answer, answer.Index, nil
	})
}

// diffBaseSelector returns a function that selects the job version with which all others are compared, nil if each
// version is compared with its predecessor.
func (r *request) diffBaseSelector() (func(*api.Job) bool, error) {
	number, tag := r.query.Get("diff_version"), r.query.Get("diff_tag")
	switch {
	case number != "" && tag != "":
		return nil, badRequestError("diff_version and diff_tag cannot be used together")
	case tag != "":
		return func(j *api.Job) bool { return j.VersionTag != nil && j.VersionTag.Name == tag }, nil
	case number != "":
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, parameterError("diff_version", number, "a uint64", err)
		}
		return func(j *api.Job) bool { return pointer.Value(j.Version) == n }, nil
	}
	return nil, nil
}

// versionDiffs returns the differences of all versions but the oldest, the newest first. Each is compared
// with its predecessor, or, if isBase is not nil, with the version for which isBase returns true.
func versionDiffs(versions []*api.Job, isBase func(*api.Job) bool) ([]*api.JobDiff, error) {
	at := -1
	if isBase != nil {
		if at = slices.IndexFunc(versions, isBase); at < 0 {
			return nil, notFoundError("the version of the job to compare with was not found")
		}
	}
	diffs := []*api.JobDiff{}
	for i, v := range versions[:len(versions)-1] {
		old := versions[i+1]
		if at >= 0 {
			old = versions[at]
		}
		diffs = append(diffs, model.Diff(old, v))
	}
	return diffs, nil
}

// splitVersionTagPath splits the path of a tag into the job and the name of the tag.
func (r *request) splitVersionTagPath() (key scheduler.JobKey, tagName string, err error) {
	id, tagName, found := strings.Cut(r.pathID, "/versions/")
	if !found || tagName == "" || strings.Contains(tagName, "/") {
		return key, "", notFoundError("")
	}
	return scheduler.JobKey{Namespace: r.namespace, ID: id}, tagName, nil
}

func (j *jobWriteHandler) tagVersion(r *request) (any, error) {
	key, name, err := r.splitVersionTagPath()
	if err != nil {
		return nil, err
	}
	var body struct {
		Version     *uint64
		Latest      bool
		Description string
	}
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if body.Latest && pointer.Value(body.Version) == 0 {
		body.Version = nil
	} else if body.Version == nil {
		body.Version = new(uint64(0)) // clients omit zero values
	}
	tag, index, err := j.scheduler.TagVersion(r.Context(), key, body.Version, api.JobVersionTag{Name: name, Description: body.Description})
	return replyWithVersionTag(r, tag, index, err)
}

func (j *jobWriteHandler) untagVersion(r *request) (any, error) {
	key, name, err := r.splitVersionTagPath()
	if err != nil {
		return nil, err
	}
	index, err := j.scheduler.UntagVersion(r.Context(), key, name)
	return replyWithVersionTag(r, api.JobVersionTag{}, index, err)
}

// replyWithVersionTag returns the reply to a change of a version tag, or the error of the change.
func replyWithVersionTag(r *request, tag api.JobVersionTag, index uint64, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return struct {
		api.JobVersionTag
		replyMeta
	}{tag, r.replyMetaOfWrite(index)}, nil
}
