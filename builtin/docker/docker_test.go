package docker

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func TestFingerprint(t *testing.T) {
	e := newFakeEngine(t)
	e.close()
	d := newTestDriver(t, e.host, nil)
	if f := d.Fingerprint(t.Context()); f.Health != driver.HealthUndetected || !strings.Contains(f.HealthDescription, e.host) {
		t.Errorf("before there is an engine: %+v", f)
	}
	e.listen(t)
	e.handle("GET /info", reply(http.StatusOK, map[string]any{"ServerVersion": "20.10", "OSType": "linux", "Runtimes": map[string]any{"runc": map[string]any{}, "kata": map[string]any{}}}))
	e.handle("GET /networks/bridge", reply(http.StatusOK, map[string]any{"IPAM": map[string]any{"Config": list(map[string]any{"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.1"})}}))
	f := d.Fingerprint(t.Context())
	if f.Health != driver.HealthHealthy {
		t.Fatalf("with an engine: %+v", f)
	}
	for name, want := range map[string]any{
		"driver.docker": true, "driver.docker.version": "20.10", "driver.docker.os_type": "linux", "driver.docker.runtimes": "kata,runc",
		"driver.docker.bridge_ip": "172.17.0.1", "driver.docker.privileged.enabled": false, "driver.docker.volumes.enabled": false,
	} {
		if got := f.Attributes[name].Value; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if d.Fingerprint(t.Context()); e.count("GET /info") != 1 {
		t.Errorf("the attributes were read %d times, want once while the engine answers", e.count("GET /info"))
	}
	e.close()
	if f := d.Fingerprint(t.Context()); f.Health != driver.HealthUnhealthy || len(f.Attributes) > 0 {
		t.Errorf("after the end of the engine: %+v", f)
	}
	e.listen(t)
	if f := d.Fingerprint(t.Context()); f.Health != driver.HealthHealthy || e.count("GET /info") != 2 {
		t.Errorf("after the return of the engine: %+v", f)
	}
}

// Options of Nomad's driver that this driver does not have are refused by their names.
func TestRefusedConfiguration(t *testing.T) {
	for name, body := range map[string]map[string]any{
		"infra_image_pull_timeout":               {"infra_image_pull_timeout": "soon"},
		"windows_allow_insecure_container_admin": {"windows_allow_insecure_container_admin": true},
		"pull_activity_timeout":                  {"pull_activity_timeout": "soon"},
		"gc.image_delay":                         {"gc": list(map[string]any{"image_delay": "-1s"})},
		"pids_limit":                             {"pids_limit": -1},
		"extra_labels":                           {"extra_labels": list("no_such_label")},
		"selinuxlabel":                           {"volumes": list(map[string]any{"selinuxlabel": "x"})},
		"image_pull_timeout":                     {"image_pull_timeout": "0s"},
		"container_exists_attempts":              {"container_exists_attempts": -1},
		"oom_score_adj":                          {"oom_score_adj": -1},
		"allowed_modes: pid":                     {"allowed_modes": map[string]any{"pid": list("private")}},
		"allowed_modes: ipc":                     {"allowed_modes": map[string]any{"ipc": list("*")}},
		"allowed_modes: userns":                  {"allowed_modes": map[string]any{"userns": list("container:*")}},
		"allowed_modes: uts":                     {"allowed_modes": map[string]any{"uts": list("h*")}},
		"container:[":                            {"allowed_modes": map[string]any{"ipc": list("container:[")}},
	} {
		c := decodeBlock[pluginConfig](t, configSchema, body)
		if err := c.validateAndParseDurations(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names it", name, err)
		}
	}
}

// A start that fails leaves no container, also if the engine dies in between.
func TestFailedStartLeavesNothing(t *testing.T) {
	start := newTestStart(t, map[string]any{"image": "app:1"})
	for name, test := range map[string]struct {
		status      int
		recoverable bool
	}{
		"the engine refuses": {http.StatusBadRequest, false},
		"the engine fails":   {http.StatusInternalServerError, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFakeEngine(t)
			e.handle("GET /images/app:1/json", reply(http.StatusOK, map[string]any{"Id": testImageID}))
			e.handle("POST /containers/create", reply(http.StatusCreated, map[string]any{"Id": "c1"}))
			e.handle("POST /containers/c1/start", reply(test.status, map[string]any{"message": "no such command"}))
			e.handle("DELETE /containers/c1", reply(http.StatusNoContent, nil))
			d := newTestDriver(t, e.host, nil)
			_, err := d.Start(t.Context(), start)
			if err == nil || !strings.Contains(err.Error(), "no such command") || driver.IsRecoverable(err) != test.recoverable {
				t.Errorf("%v, recoverable: %v; want recoverable: %v", err, driver.IsRecoverable(err), test.recoverable)
			}
			if e.count("DELETE /containers/c1") != 1 {
				t.Error("the container was not removed")
			}
			if len(d.images.startIDsByImageID) > 0 {
				t.Error("the image is still in use")
			}
		})
	}
	dead := newTestDriver(t, "unix:///no/such/socket", nil)
	if _, err := dead.Start(t.Context(), start); !driver.IsRecoverable(err) {
		t.Errorf("without an engine: %v, want a recoverable error", err)
	}
}

// A container of another owner is not removed for its name.
func TestNameOfAnotherOwner(t *testing.T) {
	for name, test := range map[string]struct {
		labels  map[string]any
		removed int
	}{
		"container of an earlier start": {map[string]any{labelAllocID: "11111111-2222-3333-4444-555555555555", labelTaskName: "web"}, 1},
		"container of another owner":    {map[string]any{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFakeEngine(t)
			d := newTestDriver(t, e.host, nil)
			plan, err := planContainer(&d.config, &taskConfig{imageConfig: imageConfig{Image: "app:1"}}, newTestStart(t, map[string]any{"image": "app:1"}), nil)
			if err != nil {
				t.Fatal(err)
			}
			options := plan.createOptions
			e.handle("POST /containers/create", func(w http.ResponseWriter, r *http.Request) {
				if e.count("DELETE /containers/old") == 0 {
					reply(http.StatusConflict, map[string]any{"message": "the name is in use"})(w, r)
					return
				}
				reply(http.StatusCreated, map[string]any{"Id": "new"})(w, r)
			})
			e.handle("GET /containers/"+options.Name+"/json", reply(http.StatusOK, map[string]any{"Id": "old", "Config": map[string]any{"Labels": test.labels}}))
			e.handle("DELETE /containers/old", reply(http.StatusNoContent, nil))
			id, err := createOrReplaceContainer(t.Context(), d.engine.client(), options, 5)
			if e.count("DELETE /containers/old") != test.removed || (err == nil) != (test.removed == 1) {
				t.Errorf("got %q, %v; the old container was removed %d times, want %d", id, err, e.count("DELETE /containers/old"), test.removed)
			}
		})
	}
}

// container_exists_attempts limits how often a container that has the name is removed.
func TestContainerExistsAttempts(t *testing.T) {
	for _, test := range []struct {
		name         string
		plugin, task map[string]any
		want         int
	}{
		{"of the plugin", map[string]any{"container_exists_attempts": 2}, nil, 2},
		{"of the task", map[string]any{"container_exists_attempts": 2}, map[string]any{"container_exists_attempts": 3}, 3},
		{"default", nil, nil, 5},
		{"no attempt", map[string]any{"container_exists_attempts": 0}, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newFakeEngine(t)
			e.handle("GET /images/app:1/json", reply(http.StatusOK, map[string]any{"Id": testImageID}))
			e.handle("POST /containers/create", reply(http.StatusConflict, map[string]any{"message": "the name is in use"}))
			task := map[string]any{"image": "app:1"}
			maps.Copy(task, test.task)
			start := newTestStart(t, task)
			labels := map[string]any{labelAllocID: start.AllocID, labelTaskName: start.Name}
			e.handle("GET /containers/"+containerName(start)+"/json", reply(http.StatusOK, map[string]any{"Id": "old", "Config": map[string]any{"Labels": labels}}))
			e.handle("DELETE /containers/old", reply(http.StatusNoContent, nil))
			_, err := newTestDriver(t, e.host, test.plugin).Start(t.Context(), start)
			if want := fmt.Sprintf("after %d attempts to remove it (container_exists_attempts)", test.want); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want an error with %q", err, want)
			}
			if creates, removed := e.count("POST /containers/create"), e.count("DELETE /containers/old"); creates != test.want+1 || removed != test.want {
				t.Errorf("%d creates and %d removals, want %d and %d", creates, removed, test.want+1, test.want)
			}
		})
	}
}

// A container that has exited needs no kill, and engines report that in different ways.
func TestKillOfExitedContainer(t *testing.T) {
	for message, want := range map[string]bool{
		"Container c1 is not running": true, "can only kill running containers": true, "container state improper: stopped": true,
		"container state improper: paused": false, "disk full": false,
	} {
		e := newFakeEngine(t)
		e.handle("POST /containers/c1/kill", reply(http.StatusInternalServerError, map[string]any{"message": message}))
		task := &task{engine: newTestDriver(t, e.host, nil).engine, state: taskState{ContainerID: "c1"}}
		if err := task.Kill(t.Context()); (err == nil) != want {
			t.Errorf("the engine reports %q: %v, want success: %v", message, err, want)
		}
	}
}

// Only old containers of this data directory that belong to no task are removed.
func TestDanglingContainers(t *testing.T) {
	e := newFakeEngine(t)
	now := time.Now().Unix()
	t.Setenv("NOMAD_LITE_DIRECTORY_ID", "directory")
	labels := func(directory, start string) map[string]any {
		return map[string]any{labelDirectoryID: directory, labelStartID: start}
	}
	e.handle("GET /containers/json", reply(http.StatusOK, list(
		map[string]any{"Id": "dangling", "Created": now - 1000, "Labels": labels("directory", "gone")},
		map[string]any{"Id": "young", "Created": now, "Labels": labels("directory", "new")},
		map[string]any{"Id": "owned", "Created": now - 1000, "Labels": labels("directory", "known")},
		map[string]any{"Id": "foreign", "Created": now - 1000, "Labels": labels("copy of the directory", "gone")},
	)))
	e.handle("DELETE /containers/dangling", reply(http.StatusNoContent, nil))
	d := newTestDriver(t, e.host, nil)
	d.reaper.registerStartAndBeginReaping(d, "known")
	config := d.config.GC.DanglingContainers
	config.DryRun = true
	if err := d.reaper.removeDanglingContainers(t.Context(), d.engine.client(), "directory", config, hclog.NewNullLogger()); err != nil || e.count("DELETE /containers/dangling") != 0 {
		t.Errorf("dry_run has removed a container: %v", err)
	}
	config.DryRun = false
	if err := d.reaper.removeDanglingContainers(t.Context(), d.engine.client(), "directory", config, hclog.NewNullLogger()); err != nil {
		t.Error(err)
	}
	for id, want := range map[string]int{"dangling": 1, "young": 0, "owned": 0, "foreign": 0} {
		if got := e.count("DELETE /containers/" + id); got != want {
			t.Errorf("the container %q was removed %d times, want %d", id, got, want)
		}
	}
}

// The container of a task that is being recovered belongs to the task: while the driver inspects it, and after an error until the
// host recovers the task again.
func TestContainerOfARecoveryIsNotDangling(t *testing.T) {
	t.Setenv("NOMAD_LITE_DIRECTORY_ID", "directory")
	e := newFakeEngine(t)
	start := newTestStart(t, map[string]any{"image": "app:1"})
	d := newTestDriver(t, e.host, nil)
	removeDangling := func() {
		if err := d.reaper.removeDanglingContainers(t.Context(), d.engine.client(), "directory", d.config.GC.DanglingContainers, hclog.NewNullLogger()); err != nil {
			t.Error(err)
		}
	}
	e.handle("GET /containers/json", reply(http.StatusOK, list(map[string]any{
		"Id": "c1", "Created": time.Now().Unix() - 1000, "Labels": map[string]any{labelDirectoryID: "directory", labelStartID: start.ID},
	})))
	e.handle("GET /containers/c1/json", func(w http.ResponseWriter, r *http.Request) {
		removeDangling()
		reply(http.StatusInternalServerError, map[string]any{"message": "the engine is busy"})(w, r)
	})
	if _, err := d.Adopt(t.Context(), start); !driver.IsRecoverable(err) {
		t.Errorf("Adopt returns %v, want a recoverable error", err)
	}
	removeDangling()
	if n := e.count("DELETE /containers/c1"); n != 0 {
		t.Errorf("the container was removed %d times", n)
	}

	e.handle("DELETE /containers/c1", reply(http.StatusNoContent, nil))
	if found, err := d.Sweep(t.Context(), sdk.SweepRequest{AllocID: start.AllocID, TaskName: start.Name}); !found || err != nil {
		t.Errorf("Sweep returns %v, %v", found, err)
	}
	if len(d.reaper.startIDsInUse) > 0 {
		t.Errorf("starts in use after Sweep: %v", d.reaper.startIDsInUse)
	}
}

func TestCheckEngineSocket(t *testing.T) {
	e := newFakeEngine(t)
	for host, want := range map[string]bool{
		e.host: true, "unix:///no/such/socket": false, "tcp://127.0.0.1:2375": true,
	} {
		t.Setenv("DOCKER_HOST", host)
		if got := CheckEngineSocket() == nil; got != want {
			t.Errorf("DOCKER_HOST=%s: %v, want %v", host, got, want)
		}
	}
}

// A start during which the plugin process has died is found by its label. A container that is only created has executed
// nothing.
func TestAdopt(t *testing.T) {
	inspected := func(state map[string]any) map[string]any {
		return map[string]any{"Id": "c1", "Image": testImageID, "State": state, "Config": map[string]any{"Labels": map[string]any{}}, "NetworkSettings": map[string]any{}}
	}
	for _, test := range []struct {
		name      string
		found     bool
		state     map[string]any
		removal   int // status of the engine's answer
		err       string
		retry     bool
		exitCode  int
		isRunning bool
	}{
		{name: "no container", err: sdk.ErrNotExecuted.Error()},
		{name: "created", found: true, state: map[string]any{"Status": "created"}, removal: http.StatusOK, err: sdk.ErrNotExecuted.Error()},
		{name: "created, and started since", found: true, state: map[string]any{"Status": "created"}, removal: http.StatusConflict, err: "was not started", retry: true},
		{name: "running", found: true, state: map[string]any{"Status": "running", "Running": true}, isRunning: true},
		{name: "exited", found: true, state: map[string]any{"Status": "exited", "ExitCode": 3}, exitCode: 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newFakeEngine(t)
			start := newTestStart(t, map[string]any{"image": "app:1"})
			list := []any{}
			if test.found {
				list = append(list, map[string]any{"Id": "c1"})
			}
			e.handle("GET /containers/json", func(w http.ResponseWriter, r *http.Request) {
				if filters := r.URL.Query().Get("filters"); !strings.Contains(filters, labelStartID+"="+start.ID) {
					t.Errorf("filters %s", filters)
				}
				reply(http.StatusOK, list)(w, r)
			})
			e.handle("GET /containers/c1/json", reply(http.StatusOK, inspected(test.state)))
			e.handle("POST /containers/c1/wait", reply(http.StatusOK, map[string]any{"StatusCode": test.exitCode}))
			e.handle("DELETE /containers/c1", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("force") == "1" {
					t.Error("a container is removed although it can run")
				}
				reply(test.removal, map[string]any{"message": "the container is running"})(w, r)
			})
			adopted, err := newTestDriver(t, e.host, nil).Adopt(t.Context(), start)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || driver.IsRecoverable(err) != test.retry {
					t.Errorf("Adopt returns %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if adopted.state.ContainerID != "c1" || adopted.state.ImageID != testImageID || adopted.state.ContainerName != containerName(start) {
				t.Errorf("state %+v", adopted.state)
			}
			if test.isRunning {
				return
			}
			result, err := adopted.Wait(t.Context())
			if err != nil || result.ExitCode != test.exitCode {
				t.Errorf("Wait returns %+v, %v", result, err)
			}
		})
	}
}
