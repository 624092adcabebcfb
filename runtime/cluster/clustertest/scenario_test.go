package clustertest

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// target is a cluster of one server, with the operations of its operator.
type target interface {
	Addr() string
	// run registers the job and returns the id of its allocation on the node.
	run(job *api.Job, nodeID string) string
	// update registers the job again; its allocation must be updated in place.
	update(job *api.Job)
	stop(job *api.Job)
	purgeNode(id string)
	// missHeartbeat waits until the node, which sends nothing, has not the status ready any longer.
	missHeartbeat(id string)
	// settle waits until the scheduler has nothing to do.
	settle()
	// waitForDrain waits until the drain of a node has ended.
	waitForDrain(id string)
	putVariable(path string, items map[string]string)
	// makeTokens makes the policy "readers" with the rules of readerRules, the role "reading" with this policy, and a
	// token of a user with both. It returns the secret of the token and the id of the role. It attaches the policy
	// "of-job" with the rules of jobRules to the job "web".
	makeTokens() (secret, roleID string)
	managementToken() string
}

const readerRules = `
namespace "default" {
  policy       = "read"
  capabilities = ["alloc-exec"]
  variables {
    path "nomad/jobs/web" {
      capabilities = ["read"]
    }
  }
}
node {
  policy = "read"
}
`

const jobRules = `
namespace "default" {
  variables {
    path "secret/other" {
      capabilities = ["read"]
    }
  }
}
`

func ptr[T any](v T) *T { return &v }

// scenarioJob returns a job with most parts that a node uses.
func scenarioJob() *api.Job {
	return &api.Job{
		ID: ptr("web"), Name: ptr("web"), Type: ptr("service"), Datacenters: []string{"*"},
		Meta: map[string]string{"team": "blue"},
		TaskGroups: []*api.TaskGroup{{
			Name: ptr("g"), Count: ptr(1),
			Networks:      []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}},
			EphemeralDisk: &api.EphemeralDisk{SizeMB: ptr(150), Sticky: ptr(true), Migrate: ptr(true)},
			Disconnect:    &api.DisconnectStrategy{LostAfter: ptr(time.Hour)},
			Volumes:       map[string]*api.VolumeRequest{"v": {Name: "v", Type: "host", Source: "scratch"}},
			RestartPolicy: &api.RestartPolicy{Attempts: ptr(1), Delay: ptr(2 * time.Second), Interval: ptr(time.Minute), Mode: ptr("fail")},
			Services: []*api.Service{{
				Name: "web", Provider: "nomad", PortLabel: "http", Tags: []string{"a", "b"},
				Checks: []api.ServiceCheck{{Name: "tcp-check", Type: "tcp", Interval: 2 * time.Second, Timeout: time.Second}},
			}},
			Tasks: []*api.Task{{
				Name: "t", Driver: "raw_exec", Config: map[string]any{"command": "/bin/sleep", "args": []string{"1000"}},
				Env:       map[string]string{"A": "b"},
				Resources: &api.Resources{CPU: ptr(50), MemoryMB: ptr(32)},
				Templates: []*api.Template{{EmbeddedTmpl: ptr("x"), DestPath: ptr("local/x")}},
				Artifacts: []*api.TaskArtifact{{GetterSource: ptr("http://192.0.2.1/a")}},
				Identities: []*api.WorkloadIdentity{
					{Name: "extra", Audience: []string{"me"}, File: true, TTL: time.Hour},
				},
			}, {
				Name: "init", Driver: "raw_exec", Config: map[string]any{"command": "/bin/true"},
				Lifecycle: &api.TaskLifecycle{Hook: "prestart"},
				Resources: &api.Resources{CPU: ptr(50), MemoryMB: ptr(32)},
			}},
		}},
	}
}

// step is one call of a scenario and its result.
type step struct {
	name     string
	err      string
	response object
}

// makeStep makes a call of a scenario.
func makeStep(c *testClient, name, method string, request object) step {
	response, err := c.call(method, request)
	s := step{name: name, response: response}
	if err != nil {
		s.err = strings.ReplaceAll(err.Error(), c.id, "NODE")
	}
	return s
}

// playOutages plays two nodes that miss their heartbeats and come back: one whose allocation can be reconnected, and one
// whose allocation is lost.
func playOutages(t *testing.T, cluster target) []step {
	var steps []step
	for _, reconnects := range []bool{true, false} {
		prefix, job := "lost: ", scenarioJob()
		if reconnects {
			prefix = "reconnected: "
		} else {
			job.TaskGroups[0].Disconnect = nil
		}
		c := connect(t, cluster.Addr())
		job.ID, job.NodePool = ptr("job-"+c.id), ptr("pool-"+c.id)
		c.mustJoinPool(*job.NodePool)
		allocID := cluster.run(job, c.id)
		do := func(name, method string, request object) {
			s := makeStep(c, prefix+name, method, request)
			s.err = strings.ReplaceAll(s.err, allocID, "ALLOC")
			steps = append(steps, s)
		}
		heartbeat := object{"NodeID": c.id, "Status": "ready"}
		poll, pull := object{"NodeID": c.id, "SecretID": c.secret}, object{"AllocIDs": []string{allocID}}
		running := object{"Alloc": []object{{"ID": allocID, "NodeID": c.id, "ClientStatus": "running", "TaskStates": object{"t": object{"State": "running"}, "init": object{"State": "dead"}}}}}
		record := c.record()
		record["NodePool"] = *job.NodePool
		do("report", "Node.UpdateAlloc", running)
		cluster.missHeartbeat(c.id)
		do("node after outage", "Node.GetNode", object{"NodeID": c.id})
		do("poll after outage", "Node.GetClientAllocs", poll)
		do("pull after outage", "Alloc.GetAllocs", pull)
		do("report after outage", "Node.UpdateAlloc", running)
		do("register after outage", "Node.Register", object{"Node": record})
		do("first heartbeat", "Node.UpdateStatus", heartbeat)
		do("node after first heartbeat", "Node.GetNode", object{"NodeID": c.id})
		do("heartbeat before report", "Node.UpdateStatus", heartbeat)
		do("first report", "Node.UpdateAlloc", running)
		do("heartbeat after report", "Node.UpdateStatus", heartbeat)
		cluster.settle()
		do("node that is back", "Node.GetNode", object{"NodeID": c.id})
		do("pull of allocation that is back", "Alloc.GetAllocs", pull)
		do("second report", "Node.UpdateAlloc", running)
		do("pull after second report", "Alloc.GetAllocs", pull)
	}
	return steps
}

// play plays the scenario against a cluster with or without access control, and returns the results.
func play(t *testing.T, cluster target, accessControl bool) []step {
	var steps []step
	allocID := "none"
	c := connect(t, cluster.Addr())
	do := func(name, method string, request object) object {
		t.Helper()
		s := makeStep(c, name, method, request)
		s.err = strings.ReplaceAll(s.err, allocID, "ALLOC")
		steps = append(steps, s)
		return s.response
	}
	const foreignID = "11111111-2222-3333-4444-555555555555"
	node := func(changes object) object {
		record := c.record()
		for key, value := range changes {
			if value == nil {
				delete(record, key)
			} else {
				record[key] = value
			}
		}
		return object{"Node": record, "AuthToken": ""}
	}

	do("ping without region", "Status.Ping", object{"Region": ""})
	do("unknown service", "Nothing.Here", nil)
	do("unknown method", "Node.Nothing", nil)
	do("removed method", "Node.DeriveVaultToken", nil)
	do("no region", "Node.Register", object{"Region": ""})
	do("other region", "Node.Register", object{"Region": "mars"})
	do("no node", "Node.Register", object{"AuthToken": ""})
	do("no node id", "Node.Register", node(object{"ID": nil}))
	do("no datacenter", "Node.Register", node(object{"Datacenter": nil}))
	do("no name", "Node.Register", node(object{"Name": nil}))
	do("no attributes", "Node.Register", node(object{"Attributes": nil}))
	do("no secret", "Node.Register", node(object{"SecretID": nil}))
	do("bad node id", "Node.Register", node(object{"ID": "abc"}))
	do("bad status", "Node.Register", node(object{"Status": "flying"}))
	do("pool all", "Node.Register", node(object{"NodePool": "all"}))
	do("bad pool", "Node.Register", node(object{"NodePool": "a b"}))
	do("garbage token", "Node.Register", object{"Node": c.record(), "AuthToken": "garbage"})
	do("unknown secret", "Node.Register", object{"Node": c.record(), "AuthToken": c.secret})
	do("heartbeat before registration", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready"})
	do("poll before registration", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret})

	c.keepIdentity(do("register", "Node.Register", node(nil)))
	do("get node that initializes", "Node.GetNode", object{"NodeID": c.id})
	do("other secret", "Node.Register", node(object{"SecretID": foreignID}))
	do("register with secret as token", "Node.Register", object{"Node": c.record(), "AuthToken": c.secret})
	do("register with identity", "Node.Register", object{"Node": c.record()})
	do("first poll", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret})
	do("poll with other secret", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": foreignID})
	do("poll without secret", "Node.GetClientAllocs", object{"NodeID": c.id})
	do("poll of secret as token", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret, "AuthToken": c.secret})
	do("poll without token", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret, "AuthToken": ""})
	do("poll of other node", "Node.GetClientAllocs", object{"NodeID": foreignID, "SecretID": c.secret})
	do("poll without node", "Node.GetClientAllocs", nil)
	do("heartbeat", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready"})
	do("second heartbeat", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready"})
	do("heartbeat with secret", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready", "AuthToken": c.secret})
	do("heartbeat with renewal", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready", "ForceIdentityRenewal": true})
	do("heartbeat without node", "Node.UpdateStatus", object{"Status": "ready"})
	do("heartbeat with bad status", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "flying"})
	do("heartbeat of other node", "Node.UpdateStatus", object{"NodeID": foreignID, "Status": "ready"})
	do("heartbeat with garbage token", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready", "AuthToken": "garbage"})
	do("heartbeat without token", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready", "AuthToken": ""})
	do("get node", "Node.GetNode", object{"NodeID": c.id})
	do("get unknown node", "Node.GetNode", object{"NodeID": foreignID})
	do("get node without id", "Node.GetNode", nil)

	cluster.putVariable("nomad/jobs/web", map[string]string{"pw": "s3"})
	cluster.putVariable("secret/other", map[string]string{"pw": "s4"})
	job := scenarioJob()
	allocID = cluster.run(job, c.id)
	polled := do("poll with allocation", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret, "MinQueryIndex": 1, "AllowStale": true})
	pulled := do("pull", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}, "MinQueryIndex": 1, "AllowStale": true})
	do("pull unknown", "Alloc.GetAllocs", object{"AllocIDs": []string{foreignID}, "AllowStale": true})
	do("pull one of two", "Alloc.GetAllocs", object{"AllocIDs": []string{foreignID, allocID}, "AllowStale": true})
	do("pull nothing", "Alloc.GetAllocs", object{"AllowStale": true})
	do("pull with garbage token", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}, "AuthToken": "garbage"})
	do("pull with secret as token", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}, "AuthToken": c.secret})
	do("pull without token", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}, "AuthToken": ""})
	do("get allocation", "Alloc.GetAlloc", object{"AllocID": allocID})
	do("get unknown allocation", "Alloc.GetAlloc", object{"AllocID": foreignID})
	do("get allocation without id", "Alloc.GetAlloc", nil)
	do("get allocation without token", "Alloc.GetAlloc", object{"AllocID": allocID, "AuthToken": ""})
	var taskToken string
	if allocs, ok := pulled["Allocs"].([]any); ok && len(allocs) == 1 {
		taskToken, _ = allocs[0].(object)["SignedIdentities"].(object)["t"].(string)
	}
	if taskToken == "" {
		t.Errorf("no identity of the task in %v", pulled)
		return steps
	}

	identity := func(alloc, task, name string) object {
		return object{"AllocID": alloc, "WorkloadIdentifier": task, "IdentityName": name, "WorkloadType": 0, "InterpolatedWorkloadIdentifier": ""}
	}
	do("sign", "Alloc.SignIdentities", object{"AllowStale": true, "Identities": []object{identity(allocID, "t", "extra")}})
	do("sign default", "Alloc.SignIdentities", object{"AllowStale": true, "Identities": []object{identity(allocID, "t", "default")}})
	do("sign rejected", "Alloc.SignIdentities", object{"AllowStale": true, "Identities": []object{
		identity(foreignID, "t", "extra"), identity(allocID, "none", "extra"), identity(allocID, "t", "none")}})
	do("sign nothing", "Alloc.SignIdentities", object{"AllowStale": true})
	do("sign with garbage token", "Alloc.SignIdentities", object{"AllowStale": true, "AuthToken": "garbage", "Identities": []object{identity(allocID, "t", "extra")}})

	do("read variable", "Variables.Read", object{"Path": "nomad/jobs/web", "Namespace": "default", "AuthToken": taskToken, "AllowStale": true})
	do("read missing variable", "Variables.Read", object{"Path": "nomad/jobs/web/g", "AuthToken": taskToken})
	do("read other variable", "Variables.Read", object{"Path": "secret/other", "AuthToken": taskToken})
	do("read variable of other namespace", "Variables.Read", object{"Path": "nomad/jobs/web", "Namespace": "other", "AuthToken": taskToken})
	do("read variable without token", "Variables.Read", object{"Path": "nomad/jobs/web", "AuthToken": ""})
	do("read variable with garbage token", "Variables.Read", object{"Path": "nomad/jobs/web", "AuthToken": "garbage"})
	do("read variable without path", "Variables.Read", object{"AuthToken": taskToken})
	do("list variables", "Variables.List", object{"Prefix": "nomad/jobs", "AuthToken": taskToken})
	do("list no variables", "Variables.List", object{"Prefix": "none", "AuthToken": taskToken})
	do("list other variables", "Variables.List", object{"Prefix": "secret", "AuthToken": taskToken})
	do("list variables without token", "Variables.List", object{"AuthToken": ""})

	registration := func(nodeID string) object {
		return object{
			"ID": "_nomad-task-" + allocID + "-group-g-web-http", "ServiceName": "web", "Namespace": "default", "NodeID": nodeID, "Datacenter": "dc1",
			"JobID": "web", "AllocID": allocID, "Tags": []string{"a", "b"}, "Address": "192.0.2.2", "Port": 20000, "CreateIndex": 0, "ModifyIndex": 0,
		}
	}
	id := registration("")["ID"]
	do("list no services", "ServiceRegistration.List", object{"AuthToken": taskToken})
	do("upsert services", "ServiceRegistration.Upsert", object{"Services": []object{registration(c.id)}})
	do("upsert service of other node", "ServiceRegistration.Upsert", object{"Services": []object{registration(foreignID)}})
	do("upsert no service", "ServiceRegistration.Upsert", nil)
	do("upsert services with garbage token", "ServiceRegistration.Upsert", object{"AuthToken": "garbage", "Services": []object{registration(c.id)}})
	do("upsert services without token", "ServiceRegistration.Upsert", object{"AuthToken": "", "Services": []object{registration(c.id)}})
	do("list services", "ServiceRegistration.List", object{"AuthToken": taskToken})
	do("list services of all namespaces", "ServiceRegistration.List", object{"AuthToken": taskToken, "Namespace": "*"})
	do("list services without token", "ServiceRegistration.List", object{"AuthToken": ""})
	do("get service", "ServiceRegistration.GetService", object{"ServiceName": "web", "AuthToken": taskToken})
	do("choose service", "ServiceRegistration.GetService", object{"ServiceName": "web", "Choose": "1|key", "AuthToken": taskToken})
	do("choose badly", "ServiceRegistration.GetService", object{"ServiceName": "web", "Choose": "key", "AuthToken": taskToken})
	do("get unknown service", "ServiceRegistration.GetService", object{"ServiceName": "none", "AuthToken": taskToken})
	do("get service without name", "ServiceRegistration.GetService", object{"AuthToken": taskToken})
	do("get service without token", "ServiceRegistration.GetService", object{"ServiceName": "web", "AuthToken": ""})
	do("get service with token of node", "ServiceRegistration.GetService", object{"ServiceName": "web"})
	do("delete service of other namespace", "ServiceRegistration.DeleteByID", object{"ID": id, "Namespace": "other"})
	do("delete service", "ServiceRegistration.DeleteByID", object{"ID": id, "Namespace": "default"})
	do("delete service again", "ServiceRegistration.DeleteByID", object{"ID": id, "Namespace": "default"})
	do("upsert service again", "ServiceRegistration.Upsert", object{"Services": []object{registration(c.id)}})

	do("emit events", "Node.EmitEvents", object{"NodeEvents": object{c.id: []object{{"Message": "driver unhealthy", "Subsystem": "Driver", "Details": object{"driver": "raw_exec"}, "Timestamp": mustMarshalTime(time.Unix(1700000001, 0).UTC())}}}})
	do("emit no events", "Node.EmitEvents", object{"NodeEvents": object{}})
	do("emit no events of node", "Node.EmitEvents", object{"NodeEvents": object{c.id: []object{}}})
	do("emit events of other node", "Node.EmitEvents", object{"NodeEvents": object{foreignID: []object{{"Message": "x", "Subsystem": "Driver"}}}})
	do("get node with events", "Node.GetNode", object{"NodeID": c.id})

	report := func(changes object) object {
		a := object{"ID": allocID, "NodeID": c.id, "ClientStatus": "running", "ClientDescription": "Tasks are running",
			"NetworkStatus": object{"InterfaceName": "", "Address": "", "AddressIPv6": "", "DNS": nil},
			"TaskStates": object{
				"t": object{"State": "running", "StartedAt": mustMarshalTime(time.Unix(1700000002, 0).UTC()),
					"Events": []object{{"Type": "Started", "Time": int64(1700000002000000000), "DisplayMessage": "Task started by client", "Details": object{}}}},
				"init": object{"State": "dead"},
			}}
		for key, value := range changes {
			a[key] = value
		}
		return a
	}
	do("report running", "Node.UpdateAlloc", object{"Alloc": []object{report(nil)}})
	do("report healthy", "Node.UpdateAlloc", object{"Alloc": []object{report(object{"DeploymentStatus": object{"Healthy": true, "Timestamp": mustMarshalTime(time.Unix(1700000003, 0).UTC())}})}})
	do("report nothing", "Node.UpdateAlloc", object{"Alloc": []object{}})
	do("report without node", "Node.UpdateAlloc", object{"Alloc": []object{report(object{"NodeID": ""})}})
	do("report of other node", "Node.UpdateAlloc", object{"Alloc": []object{report(object{"NodeID": foreignID})}})
	do("report unknown", "Node.UpdateAlloc", object{"Alloc": []object{report(object{"ID": "abc"})}})
	do("report with evaluations", "Node.UpdateAlloc", object{"Alloc": []object{report(nil)}, "Evals": []object{{"ID": foreignID}}})
	do("report with garbage token", "Node.UpdateAlloc", object{"AuthToken": "garbage", "Alloc": []object{report(nil)}})
	do("report without token", "Node.UpdateAlloc", object{"AuthToken": "", "Alloc": []object{report(nil)}})
	do("pull after report", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}})
	again := do("poll after report", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret})
	if before, after := polled["Allocs"].(object)[allocID], again["Allocs"].(object)[allocID]; before != after {
		t.Errorf("AllocModifyIndex changed from %v to %v because of a report", before, after)
	}

	updated := scenarioJob()
	updated.TaskGroups[0].Services[0].Tags = []string{"c"}
	cluster.update(updated)
	do("poll after update in place", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret, "MinQueryIndex": again["Index"]})
	do("pull after update in place", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}})

	do("task token at heartbeat", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready", "AuthToken": taskToken})
	do("task token at pull", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}, "AuthToken": taskToken})
	do("get node without token", "Node.GetNode", object{"NodeID": c.id, "AuthToken": ""})
	do("get node of task", "Node.GetNode", object{"NodeID": c.id, "AuthToken": taskToken})
	do("get node with garbage token", "Node.GetNode", object{"NodeID": c.id, "AuthToken": "garbage"})
	do("who is node", "ACL.WhoAmI", nil)
	do("who is task", "ACL.WhoAmI", object{"AuthToken": taskToken})
	do("who is anonymous", "ACL.WhoAmI", object{"AuthToken": ""})
	do("who is secret", "ACL.WhoAmI", object{"AuthToken": c.secret})
	do("who is garbage", "ACL.WhoAmI", object{"AuthToken": "garbage"})
	do("who is unknown", "ACL.WhoAmI", object{"AuthToken": foreignID})
	do("policies of task", "ACL.GetClaimPolicies", object{"AuthToken": taskToken})
	do("policies of claims without token", "ACL.GetClaimPolicies", object{"AuthToken": ""})
	if accessControl {
		user, roleID := cluster.makeTokens()
		management := cluster.managementToken()
		do("policies of task with policies", "ACL.GetClaimPolicies", object{"AuthToken": taskToken})
		do("read other variable with policies", "Variables.Read", object{"Path": "secret/other", "AuthToken": taskToken})
		do("who is user", "ACL.WhoAmI", object{"AuthToken": user})
		do("who is management", "ACL.WhoAmI", object{"AuthToken": management})
		do("policies of user", "ACL.GetPolicies", object{"AuthToken": user, "Names": []string{"readers"}})
		do("policies of management", "ACL.GetPolicies", object{"AuthToken": management, "Names": []string{"readers", "none"}})
		do("other policies of user", "ACL.GetPolicies", object{"AuthToken": user, "Names": []string{"other"}})
		do("policies without token", "ACL.GetPolicies", object{"AuthToken": "", "Names": []string{"readers"}})
		do("policies of unknown", "ACL.GetPolicies", object{"AuthToken": foreignID, "Names": []string{"readers"}})
		do("no policies", "ACL.GetPolicies", object{"AuthToken": user})
		do("roles of user", "ACL.GetRolesByID", object{"AuthToken": user, "ACLRoleIDs": []string{roleID}})
		do("unknown roles of user", "ACL.GetRolesByID", object{"AuthToken": user, "ACLRoleIDs": []string{foreignID}})
		do("unknown roles of management", "ACL.GetRolesByID", object{"AuthToken": management, "ACLRoleIDs": []string{foreignID}})
		do("roles without token", "ACL.GetRolesByID", object{"AuthToken": "", "ACLRoleIDs": []string{roleID}})
		do("heartbeat of user", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready", "AuthToken": user})
		do("heartbeat of management", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready", "AuthToken": management})
		do("pull of management", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}, "AuthToken": management})
		do("get allocation of user", "Alloc.GetAlloc", object{"AllocID": allocID, "AuthToken": user})
		do("get node of user", "Node.GetNode", object{"NodeID": c.id, "AuthToken": user})
		do("read variable of user", "Variables.Read", object{"Path": "nomad/jobs/web", "AuthToken": user})
		do("read other variable of user", "Variables.Read", object{"Path": "secret/other", "AuthToken": user})
		do("get service of user", "ServiceRegistration.GetService", object{"ServiceName": "web", "AuthToken": user})
		do("policies of user after use", "ACL.GetPolicies", object{"AuthToken": user, "Names": []string{"readers"}})
	} else {
		do("policies", "ACL.GetPolicies", object{"Names": []string{"readers"}})
		do("roles", "ACL.GetRolesByID", object{"ACLRoleIDs": []string{foreignID}})
	}

	other := connect(t, cluster.Addr())
	other.mustJoin()
	do("heartbeat of another node", "Node.UpdateStatus", object{"NodeID": other.id, "Status": "ready"})
	do("poll of another node", "Node.GetClientAllocs", object{"NodeID": other.id, "SecretID": other.secret})
	do("poll of another node with its secret as token", "Node.GetClientAllocs", object{"NodeID": other.id, "SecretID": c.secret, "AuthToken": other.secret})
	do("report of another node", "Node.UpdateAlloc", object{"Alloc": []object{report(object{"NodeID": other.id})}})
	do("report of the allocation of another node", "Node.UpdateAlloc", object{"AuthToken": other.identity, "Alloc": []object{report(object{"NodeID": other.id, "ClientDescription": "by another node"})}})
	do("pull after report of another node", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}})
	do("pull of the allocation of another node", "Alloc.GetAllocs", object{"AuthToken": other.identity, "AllocIDs": []string{allocID}})
	do("get the allocation of another node", "Alloc.GetAlloc", object{"AuthToken": other.identity, "AllocID": allocID})
	do("sign for another node", "Alloc.SignIdentities", object{"AuthToken": other.identity, "Identities": []object{identity(allocID, "t", "extra")}})
	do("events of another node", "Node.EmitEvents", object{"NodeEvents": object{other.id: []object{{"Message": "x", "Subsystem": "Driver"}}}})
	do("service of another node", "ServiceRegistration.Upsert", object{"Services": []object{registration(other.id)}})
	do("delete service of another node", "ServiceRegistration.DeleteByID", object{"AuthToken": other.identity, "ID": id, "Namespace": "default"})
	do("get another node", "Node.GetNode", object{"NodeID": other.id})
	do("drain another node", "Node.UpdateDrain", object{"NodeID": other.id, "DrainStrategy": object{"Deadline": int64(time.Second)}})
	do("register with identity of another node", "Node.Register", object{"Node": c.record(), "AuthToken": other.identity})
	do("register with secret of another node", "Node.Register", object{"Node": c.record(), "AuthToken": other.secret})
	stranger := connect(t, cluster.Addr())
	stranger.mustJoinPool("elsewhere")
	do("pull from another pool", "Alloc.GetAllocs", object{"AuthToken": stranger.identity, "AllocIDs": []string{allocID}})
	do("get allocation from another pool", "Alloc.GetAlloc", object{"AuthToken": stranger.identity, "AllocID": allocID})
	do("sign from another pool", "Alloc.SignIdentities", object{"AuthToken": stranger.identity, "Identities": []object{identity(allocID, "t", "extra")}})
	do("get node from another pool", "Node.GetNode", object{"AuthToken": stranger.identity, "NodeID": c.id})
	do("delete service from another pool", "ServiceRegistration.DeleteByID", object{"AuthToken": stranger.identity, "ID": id, "Namespace": "default"})
	do("register in another pool", "Node.Register", node(object{"NodePool": "third"}))
	do("register in the first pool", "Node.Register", node(nil))

	cluster.stop(job)
	do("pull after stop", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}})
	do("report complete", "Node.UpdateAlloc", object{"Alloc": []object{report(object{"ClientStatus": "complete", "ClientDescription": "All tasks have completed"})}})
	do("pull after completion", "Alloc.GetAllocs", object{"AllocIDs": []string{allocID}})
	do("read variable after completion", "Variables.Read", object{"Path": "nomad/jobs/web", "AuthToken": taskToken})
	do("get service after completion", "ServiceRegistration.GetService", object{"ServiceName": "web", "AuthToken": c.adminToken(cluster)})
	do("sign after completion", "Alloc.SignIdentities", object{"AllowStale": true, "Identities": []object{identity(allocID, "t", "extra")}})

	do("drain itself", "Node.UpdateDrain", object{"NodeID": c.id, "DrainStrategy": object{"Deadline": int64(time.Second), "IgnoreSystemJobs": true}, "Meta": object{"message": "shutting down"}})
	cluster.waitForDrain(c.id)
	do("get drained node", "Node.GetNode", object{"NodeID": c.id})
	do("drain other node", "Node.UpdateDrain", object{"NodeID": foreignID, "DrainStrategy": object{"Deadline": int64(time.Second)}})
	do("drain without node", "Node.UpdateDrain", nil)
	do("deregister without node", "Node.Deregister", nil)
	if accessControl {
		do("deregister", "Node.Deregister", object{"NodeID": c.id})
	}
	cluster.purgeNode(c.id)
	do("heartbeat after purge", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready"})
	do("poll after purge", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret})
	do("poll with secret after purge", "Node.GetClientAllocs", object{"NodeID": c.id, "SecretID": c.secret, "AuthToken": c.secret})
	do("report after purge", "Node.UpdateAlloc", object{"Alloc": []object{report(nil)}})
	do("events after purge", "Node.EmitEvents", object{"NodeEvents": object{c.id: []object{{"Message": "x", "Subsystem": "Driver"}}}})
	do("drain after purge", "Node.UpdateDrain", object{"NodeID": c.id, "DrainStrategy": object{"Deadline": int64(time.Second)}})
	do("register after purge", "Node.Register", object{"Node": c.record()})
	do("heartbeat after second registration", "Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready"})
	return steps
}

// adminToken returns the token of an operator, or an empty one where the cluster has no access control.
func (c *testClient) adminToken(cluster target) string { return cluster.managementToken() }
