package model

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
)

// NomadAudience is the audience of the default identity. A task uses that identity to authenticate to the API.
const NomadAudience = "nomadproject.io"

// DefaultIdentity names the identity every task has.
const DefaultIdentity = "default"

// Canonicalize converts job into the form for storing and running it: it fills in defaults, copies inherited attributes to the
// group and the task, adds implied constraints, and sets empty collections to null. It changes job in place, and a second call
// changes nothing; but it writes to canonical jobs, too, so no other goroutine may read the job or its parts. Null entries in
// lists and maps are dropped.
//
// Attributes that Nomad drops silently (max_client_disconnect and similar ones) are kept, so that Warnings can name them.
func Canonicalize(job *api.Job) {
	if job == nil {
		return
	}
	removeNullsAndEmpties(reflect.ValueOf(job).Elem())
	job.Canonicalize()

	setDefaultIfZero(&job.Region, api.GlobalRegion)
	setDefaultIfZero(&job.Namespace, api.DefaultNamespace)
	setDefaultIfZero(&job.NodePool, api.NodePoolDefault)
	setDefaultIfZero(&job.Priority, api.JobDefaultPriority)
	if len(job.Datacenters) == 0 {
		job.Datacenters = []string{"*"}
	}
	if job.DispatchIdempotencyToken == nil {
		job.DispatchIdempotencyToken = new("")
	}
	setDefaultOperands(job.Affinities)
	for _, g := range job.TaskGroups {
		canonicalizeGroup(job, g)
		addImpliedConstraints(g)
	}
	// The groups have inherited the job's reschedule, migrate and update blocks. The job keeps only a part of its update block.
	job.Reschedule, job.Migrate = nil, nil
	job.Update = keepStaggerAndMaxParallel(job.Update)
}

// setDefaultIfZero sets an attribute for which zero and unset mean the same.
func setDefaultIfZero[T comparable](p **T, value T) {
	if *p == nil || **p == *new(T) {
		*p = &value
	}
}

func keepStaggerAndMaxParallel(u *api.UpdateStrategy) *api.UpdateStrategy {
	stored := &api.UpdateStrategy{
		Stagger:          new(time.Duration(0)),
		MaxParallel:      new(0),
		HealthCheck:      new(""),
		MinHealthyTime:   new(time.Duration(0)),
		HealthyDeadline:  new(time.Duration(0)),
		ProgressDeadline: new(time.Duration(0)),
		Canary:           new(0),
		AutoRevert:       new(false),
		AutoPromote:      new(false),
	}
	if u != nil {
		stored.Stagger, stored.MaxParallel = u.Stagger, u.MaxParallel
	}
	return stored
}

func canonicalizeGroup(job *api.Job, g *api.TaskGroup) {
	setDefaultOperands(g.Affinities)
	setDefaultHostNetworks(g.Networks)
	for _, s := range g.Services {
		canonicalizeService(s, *job.Name, *g.Name, "")
	}
	for label, v := range g.Volumes {
		if v.Name == "" {
			v.Name = label
		}
	}
	if g.Scaling != nil {
		g.Scaling.Target = map[string]string{"Namespace": *job.Namespace, "Job": *job.ID, "Group": *g.Name}
		g.Scaling.ID = ScalingPolicyID(*job.Namespace, *job.ID, *g.Name)
	}
	for _, t := range g.Tasks {
		canonicalizeTask(job, g, t)
	}
}

// ScalingPolicyID returns the ID of a group's scaling policy. It depends only on the arguments.
func ScalingPolicyID(namespace, job, group string) string {
	return uuid.NewSHA1(uuid.Nil, []byte(strings.Join([]string{"scaling", namespace, job, group}, "\x00"))).String()
}

func canonicalizeTask(job *api.Job, g *api.TaskGroup, t *api.Task) {
	setDefaultOperands(t.Affinities)
	setDefaultHostNetworks(t.Resources.Networks)
	for _, d := range t.Resources.Devices {
		setDefaultOperands(d.Affinities)
	}
	for _, s := range t.Services {
		canonicalizeService(s, *job.Name, *g.Name, t.Name)
		if s.TaskName == "" {
			s.TaskName = t.Name
		}
	}
	canonicalizeIdentities(t)
}

// canonicalizeIdentities gives the task its default identity, and moves a default identity out of the list of other identities.
func canonicalizeIdentities(t *api.Task) {
	var otherIdentities []*api.WorkloadIdentity
	for _, id := range t.Identities {
		id.ChangeSignal = strings.ToUpper(id.ChangeSignal)
		if id.Name == "" || id.Name == DefaultIdentity {
			t.Identity = id
		} else {
			otherIdentities = append(otherIdentities, id)
		}
	}
	t.Identities = otherIdentities
	if t.Identity == nil {
		t.Identity = &api.WorkloadIdentity{}
	}
	t.Identity.Name = DefaultIdentity
	t.Identity.Audience = []string{NomadAudience}
	t.Identity.ChangeSignal = strings.ToUpper(t.Identity.ChangeSignal)
}

// setDefaultOperands sets the operator of affinities in JSON. Constraints in JSON have no default: see checkConstraint.
func setDefaultOperands(affinities []*api.Affinity) {
	for _, a := range affinities {
		if a.Operand == "" {
			a.Operand = "="
		}
	}
}

func setDefaultHostNetworks(networks []*api.NetworkResource) {
	for _, n := range networks {
		for _, ports := range [][]api.Port{n.ReservedPorts, n.DynamicPorts} {
			for i := range ports {
				if ports[i].HostNetwork == "" {
					ports[i].HostNetwork = DefaultHostNetwork
				}
			}
		}
	}
}

// canonicalizeService fills in the names, and removes the check_restart block after its checks have inherited it. task is "" for
// a group service.
func canonicalizeService(s *api.Service, job, group, task string) {
	s.Name = expandServiceName(s.Name, job, group, task)
	s.CheckRestart = nil
	for i := range s.Checks {
		if s.Checks[i].Name == "" {
			s.Checks[i].Name = fmt.Sprintf("service: %q check", s.Name)
		}
	}
}

func expandServiceName(name, job, group, task string) string {
	if task == "" {
		task = "group"
	}
	var replacements []string
	for _, p := range [][2]string{
		{"${JOB}", job},
		{"${TASKGROUP}", group},
		{"${TASK}", task},
		{"${BASE}", job + "-" + group + "-" + task},
	} {
		// A value with a placeholder or an empty result would produce another name each time the job is canonicalized.
		if p[1] != "" && !strings.Contains(p[1], "${") {
			replacements = append(replacements, p[0], p[1])
		}
	}
	return strings.NewReplacer(replacements...).Replace(name)
}

// removeNullsAndEmpties drops null entries and sets empty collections to null, in all API
// types. Free-form values (config, policy) are not changed.
func removeNullsAndEmpties(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			removeNullsAndEmpties(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			removeNullsAndEmpties(v.Field(i))
		}
	case reflect.Slice:
		removeNullsFromSlice(v)
	case reflect.Map:
		removeNullsFromMap(v)
	}
}

func removeNullsFromSlice(v reflect.Value) {
	kept := 0
	for i := range v.Len() {
		e := v.Index(i)
		if e.Kind() == reflect.Pointer && e.IsNil() {
			continue
		}
		removeNullsAndEmpties(e)
		if kept < i {
			v.Index(kept).Set(e)
		}
		kept++
	}
	switch {
	case v.IsNil():
	case kept == 0:
		v.SetZero()
	case kept < v.Len():
		v.SetLen(kept)
	}
}

func removeNullsFromMap(v reflect.Value) {
	for _, key := range v.MapKeys() {
		e := v.MapIndex(key)
		if e.Kind() == reflect.Pointer && e.IsNil() {
			v.SetMapIndex(key, reflect.Value{})
			continue
		}
		if e.Kind() == reflect.Pointer {
			removeNullsAndEmpties(e)
		}
	}
	if v.Len() == 0 && !v.IsNil() {
		v.SetZero()
	}
}
