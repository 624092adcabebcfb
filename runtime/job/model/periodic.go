package model

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/cronexpr"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// checkPeriodic checks a periodic block, unless it is disabled.
func checkPeriodic(r *faultReport, job *api.Job) {
	p := job.Periodic
	if p == nil || !pointer.Value(p.Enabled) {
		return
	}
	checkIsBatchJob(r, job, "Periodic")
	spec := pointer.Value(p.Spec)
	switch {
	case spec == "" && len(p.Specs) == 0:
		r.addFault("Must specify a spec")
	case spec != "" && len(p.Specs) > 0:
		r.addFault("Only cron or crons may be used")
	}
	specs := p.Specs
	if spec != "" {
		specs = append(slices.Clone(specs), spec)
	}
	for _, text := range specs {
		if err := checkCron(text); err != nil {
			r.addFault("Invalid cron spec %q: %v", text, err)
		}
	}
	if _, err := time.LoadLocation(pointer.Value(p.TimeZone)); err != nil {
		r.atPath("time_zone").addFault("Invalid time zone %q: %v", pointer.Value(p.TimeZone), err)
	}
}

// checkCron parses a cron line. The library panics on some texts.
func checkCron(text string) (err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("failed parsing cron expression: %q", text)
		}
	}()
	_, err = cronexpr.Parse(text)
	return err
}

// NextPeriodicLaunch returns the first time after the given one at which a valid periodic job is due: the earliest time of its
// cron lines in its time zone. The zero time means never.
func NextPeriodicLaunch(job *api.Job, after time.Time) time.Time {
	p := job.Periodic
	if p == nil {
		return time.Time{}
	}
	zone, err := time.LoadLocation(pointer.Value(p.TimeZone))
	if err != nil {
		return time.Time{}
	}
	specs := p.Specs
	if spec := pointer.Value(p.Spec); spec != "" {
		specs = append(slices.Clone(specs), spec)
	}
	var firstLaunch time.Time
	for _, text := range specs {
		if at := nextCronTimeOrZero(text, after.In(zone)); !at.IsZero() && (firstLaunch.IsZero() || at.Before(firstLaunch)) {
			firstLaunch = at
		}
	}
	return firstLaunch
}

// nextCronTimeOrZero returns zero if the line has no later time or is invalid.
func nextCronTimeOrZero(text string, after time.Time) (at time.Time) {
	defer func() {
		if recover() != nil {
			at = time.Time{}
		}
	}()
	line, err := cronexpr.Parse(text)
	if err != nil {
		return time.Time{}
	}
	return line.Next(after)
}

var payloadModes = []string{"", "optional", "required", "forbidden"}

func checkParameterized(r *faultReport, job *api.Job) {
	p := job.ParameterizedJob
	if p == nil {
		return
	}
	checkIsBatchJob(r, job, "Parameterized job")
	if !slices.Contains(payloadModes, p.Payload) {
		r.addFault("Unknown payload requirement: %q", p.Payload)
	}
	var metaInBothLists []string
	for _, key := range p.MetaRequired {
		if slices.Contains(p.MetaOptional, key) {
			metaInBothLists = append(metaInBothLists, key)
		}
	}
	if len(metaInBothLists) > 0 {
		r.addFault("Required and optional meta keys should be disjoint. Following keys exist in both: %v", metaInBothLists)
	}
}

func checkIsBatchJob(r *faultReport, job *api.Job, blockName string) {
	if t := pointer.Value(job.Type); t != api.JobTypeBatch && t != api.JobTypeSysbatch {
		r.addFault("%s can only be used with %q or %q scheduler", blockName, api.JobTypeBatch, api.JobTypeSysbatch)
	}
}
