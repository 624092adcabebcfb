package client

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

var agentTrials = trials{
	"Self": func(t *testing.T, e *env) {
		self, err := e.Agent().Self()
		must(t, err)
		if self.Stats["client"]["node_id"] != e.node || self.Member.Status != "alive" || self.Config["Region"] != "global" {
			t.Errorf("%+v", self)
		}
	},
	"NodeName": func(t *testing.T, e *env) {
		name, err := e.Agent().NodeName()
		must(t, err)
		if name == "" {
			t.Error("no name")
		}
	},
	"Datacenter": func(t *testing.T, e *env) {
		dc, err := e.Agent().Datacenter()
		must(t, err)
		equal(t, "datacenter", dc, "dc1")
	},
	"Region": func(t *testing.T, e *env) {
		region, err := e.Agent().Region()
		must(t, err)
		equal(t, "region", region, "global")
	},
	"Join": func(t *testing.T, e *env) {
		n, err := e.Agent().Join("10.0.0.1")
		if n != 0 || err == nil || !strings.Contains(err.Error(), "clustering is not supported") {
			t.Errorf("joined %d, %v", n, err)
		}
	},
	"Members": func(t *testing.T, e *env) {
		members, err := e.Agent().Members()
		must(t, err)
		if len(members.Members) != 1 || members.Members[0].Tags["region"] != "global" {
			t.Errorf("%+v", members)
		}
	},
	"MembersOpts": func(t *testing.T, e *env) {
		members, err := e.Agent().MembersOpts(&api.QueryOptions{AllowStale: true})
		must(t, err)
		equal(t, "members", len(members.Members), 1)
	},
	"ForceLeave": refused(501, "", func(e *env) error { return e.Agent().ForceLeave("x") }),
	"ForceLeaveWithOptions": refused(501, "", func(e *env) error {
		return e.Agent().ForceLeaveWithOptions("x", api.ForceLeaveOpts{Prune: true})
	}),
	"Servers": func(t *testing.T, e *env) {
		servers, err := e.Agent().Servers()
		must(t, err)
		equal(t, "servers", len(servers), 1)
	},
	"SetServers": func(t *testing.T, e *env) { must(t, e.Agent().SetServers([]string{"10.0.0.1"})) },
	"ListKeys": refused(501, "", func(e *env) error {
		_, err := e.Agent().ListKeys()
		return err
	}),
	"InstallKey": refused(501, "", func(e *env) error {
		_, err := e.Agent().InstallKey("x")
		return err
	}),
	"UseKey": refused(501, "", func(e *env) error {
		_, err := e.Agent().UseKey("x")
		return err
	}),
	"RemoveKey": refused(501, "", func(e *env) error {
		_, err := e.Agent().RemoveKey("x")
		return err
	}),
	"Reload": func(t *testing.T, e *env) { must(t, e.Agent().Reload(nil, nil)) },
	"Health": func(t *testing.T, e *env) {
		health, err := e.Agent().Health()
		must(t, err)
		if !health.Client.Ok || !health.Server.Ok {
			t.Errorf("%+v", health)
		}
	},
	"Host": refused(403, "", func(e *env) error {
		_, err := e.Agent().Host("", e.node, nil)
		return err
	}),
	"Monitor": func(t *testing.T, e *env) {
		stop := make(chan struct{})
		defer close(stop)
		frames, errs := e.Agent().Monitor(stop, &api.QueryOptions{Params: map[string]string{"log_level": "debug"}})
		_, _, err := e.Jobs().List(nil) // is logged
		must(t, err)
		e.seen(t, frames, errs, "/v1/jobs")
		_, errs = e.Agent().Monitor(stop, &api.QueryOptions{Params: map[string]string{"log_level": "zz"}})
		refuses(t, 400, "Unknown log level: zz", <-errs)
	},
	"MonitorExport": func(t *testing.T, e *env) {
		_, errs := e.Agent().MonitorExport(nil, &api.QueryOptions{})
		refuses(t, 400, "", <-errs)
	},
	"CPUProfile": refused(403, "Permission denied", func(e *env) error {
		_, err := e.Agent().CPUProfile(api.PprofOptions{}, nil)
		return err
	}),
	"Trace": refused(403, "Permission denied", func(e *env) error {
		_, err := e.Agent().Trace(api.PprofOptions{}, nil)
		return err
	}),
	"Lookup": refused(403, "Permission denied", func(e *env) error {
		_, err := e.Agent().Lookup("heap", api.PprofOptions{}, nil)
		return err
	}),
	"GetSchedulerWorkerConfig": func(t *testing.T, e *env) {
		c, err := e.Agent().GetSchedulerWorkerConfig(nil)
		must(t, err)
		if c.NumSchedulers < 1 {
			t.Errorf("%+v", c)
		}
	},
	"SetSchedulerWorkerConfig": refused(501, "not part of a cluster", func(e *env) error {
		_, err := e.Agent().SetSchedulerWorkerConfig(api.SchedulerWorkerPoolArgs{NumSchedulers: 3}, nil)
		return err
	}),
	"GetSchedulerWorkersInfo": func(t *testing.T, e *env) {
		info, err := e.Agent().GetSchedulerWorkersInfo(nil)
		must(t, err)
		equal(t, "workers", len(info.Schedulers), 1)
	},
}

var operatorTrials = trials{
	"RaftGetConfiguration": func(t *testing.T, e *env) {
		c, err := e.Operator().RaftGetConfiguration(nil)
		must(t, err)
		if len(c.Servers) != 1 || !c.Servers[0].Leader || !c.Servers[0].Voter {
			t.Errorf("%+v", c)
		}
	},
	"RaftRemovePeerByAddress":         refused(501, "", func(e *env) error { return e.Operator().RaftRemovePeerByAddress("10.0.0.1:4647", nil) }),
	"RaftRemovePeerByID":              refused(501, "", func(e *env) error { return e.Operator().RaftRemovePeerByID(unknown, nil) }),
	"RaftTransferLeadershipByAddress": refused(501, "", func(e *env) error { return e.Operator().RaftTransferLeadershipByAddress("10.0.0.1:4647", nil) }),
	"RaftTransferLeadershipByID":      refused(501, "", func(e *env) error { return e.Operator().RaftTransferLeadershipByID(unknown, nil) }),
	"SchedulerGetConfiguration": func(t *testing.T, e *env) {
		c, _, err := e.Operator().SchedulerGetConfiguration(nil)
		must(t, err)
		equal(t, "algorithm", c.SchedulerConfig.SchedulerAlgorithm, api.SchedulerAlgorithmBinpack)
	},
	"SchedulerSetConfiguration": refused(501, "", func(e *env) error {
		_, _, err := e.Operator().SchedulerSetConfiguration(&api.SchedulerConfiguration{SchedulerAlgorithm: api.SchedulerAlgorithmSpread}, nil)
		return err
	}),
	"SchedulerCASConfiguration": refused(501, "", func(e *env) error {
		_, _, err := e.Operator().SchedulerCASConfiguration(&api.SchedulerConfiguration{SchedulerAlgorithm: api.SchedulerAlgorithmSpread}, nil)
		return err
	}),
	"Snapshot": func(t *testing.T, e *env) {
		archive, err := e.Operator().Snapshot(nil)
		must(t, err)
		defer archive.Close()
		unzipped, err := gzip.NewReader(archive)
		must(t, err)
		first, err := tar.NewReader(unzipped).Next()
		must(t, err)
		equal(t, "first file", first.Name, "meta.json")
		_, err = io.Copy(io.Discard, archive) // the client compares the checksum at the end
		must(t, err)
	},
	"SnapshotRestore": refused(501, "", func(e *env) error {
		_, err := e.Operator().SnapshotRestore(strings.NewReader("x"), nil)
		return err
	}),
	"LicensePut": refused(501, "", func(e *env) error {
		_, err := e.Operator().LicensePut("x", nil)
		return err
	}),
	"ApplyLicense": refused(501, "", func(e *env) error {
		_, err := e.Operator().ApplyLicense("x", nil, nil)
		return err
	}),
	"LicenseGet": func(t *testing.T, e *env) {
		if _, _, err := e.Operator().LicenseGet(nil); err == nil || !strings.Contains(err.Error(), "Nomad Enterprise only endpoint") {
			t.Errorf("error %v", err)
		}
	},
	"UpgradeCheckVaultWorkloadIdentity": func(t *testing.T, e *env) {
		c, _, err := e.Operator().UpgradeCheckVaultWorkloadIdentity(nil)
		must(t, err)
		equal(t, "ready", c.Ready(), true)
	},
	"Utilization": refused(501, "Nomad Enterprise only endpoint", func(e *env) error {
		_, _, err := e.Operator().Utilization(&api.OperatorUtilizationOptions{}, nil)
		return err
	}),
	"AutopilotGetConfiguration": func(t *testing.T, e *env) {
		_, _, err := e.Operator().AutopilotGetConfiguration(nil)
		must(t, err)
	},
	"AutopilotSetConfiguration": refused(501, "", func(e *env) error {
		_, err := e.Operator().AutopilotSetConfiguration(&api.AutopilotConfiguration{}, nil)
		return err
	}),
	"AutopilotCASConfiguration": refused(501, "", func(e *env) error {
		_, _, err := e.Operator().AutopilotCASConfiguration(&api.AutopilotConfiguration{}, nil)
		return err
	}),
	"AutopilotServerHealth": func(t *testing.T, e *env) {
		h, _, err := e.Operator().AutopilotServerHealth(nil)
		must(t, err)
		if !h.Healthy || len(h.Servers) != 1 {
			t.Errorf("%+v", h)
		}
	},
	"Metrics": func(t *testing.T, e *env) {
		text, err := e.Operator().Metrics(&api.QueryOptions{Params: map[string]string{"format": "prometheus"}})
		must(t, err)
		if !bytes.Contains(text, []byte("# TYPE nomad_")) {
			t.Errorf("%.200s", text)
		}
	},
	"MetricsSummary": func(t *testing.T, e *env) {
		s, _, err := e.Operator().MetricsSummary(nil)
		must(t, err)
		if s.Timestamp == "" || len(s.Gauges) == 0 {
			t.Errorf("%+v", s)
		}
	},
}

var regionTrials = trials{
	"List": func(t *testing.T, e *env) {
		list, err := e.Regions().List()
		must(t, err)
		if len(list) != 1 || list[0] != "global" {
			t.Errorf("%v", list)
		}
	},
}

var statusTrials = trials{
	"Leader": func(t *testing.T, e *env) {
		leader, err := e.Status().Leader()
		must(t, err)
		peers, err := e.Status().Peers()
		must(t, err)
		equal(t, "leader", leader, peers[0])
	},
	"RegionLeader": func(t *testing.T, e *env) {
		_, err := e.Status().RegionLeader("global")
		must(t, err)
		_, err = e.Status().RegionLeader("mars")
		refuses(t, 500, "No path to region", err)
	},
	"Peers": func(t *testing.T, e *env) {
		peers, err := e.Status().Peers()
		must(t, err)
		equal(t, "peers", len(peers), 1)
	},
}

var systemTrials = trials{
	"GarbageCollect": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		e.register(t, job)
		e.newest(t, *job.ID, api.AllocClientStatusComplete)
		_, _, err := e.Jobs().Deregister(*job.ID, false, nil)
		must(t, err)
		until(t, func(q *api.QueryOptions) ([]*api.JobListStub, *api.QueryMeta, error) {
			must(t, e.System().GarbageCollect()) // what has not ended yet stays
			q.Prefix = *job.ID
			return e.Jobs().List(q)
		}, func(list []*api.JobListStub) bool { return len(list) == 0 })
	},
	"ReconcileSummaries": func(t *testing.T, e *env) { must(t, e.System().ReconcileSummaries()) },
}
