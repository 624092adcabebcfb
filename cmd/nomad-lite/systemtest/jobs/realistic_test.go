package jobs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// realisticDir has job files as users write them.
const realisticDir = "testdata/realistic"

// The bridge of the groups with the network mode bridge.
const (
	realisticBridge = "realistic"
	realisticSubnet = "172.29.64.0/20"
)

const nobody = 65534 // uid of tasks of the driver exec

// TestRealisticJobs runs each job file of the directory on one agent with a Docker engine, and
// checks that the job does its work.
func TestRealisticJobs(t *testing.T) {
	t.Parallel()
	engine := dockertest.StartOrSkip(t)
	importServiceImages(t, engine)
	var allocs []*api.AllocationListStub
	t.Cleanup(func() {
		if names := engine.ContainerNames(t); len(names) > 0 {
			t.Errorf("containers remain: %v", names)
		}
		assertNoNetworks(t, allocs)
	})
	world, reports := t.TempDir(), t.TempDir()
	if err := os.Chown(reports, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	// The containers and the test reach each other by the address of Docker's bridge. Other agents of the machine
	// can have a bridge with the default name.
	agent := systemtest.StartTestAgent(t, false, fmt.Sprintf(`
client {
  network_interface     = "docker0"
  bridge_network_name   = %[2]q
  bridge_network_subnet = %[3]q
  host_volume "game-world" {
    path = %[4]q
  }
  host_volume "reports" {
    path = %[5]q
  }
}
plugin "exec" {}
plugin "docker" {
  config {
    endpoint = %[1]q
    volumes {
      enabled = true
    }
    gc {
      image = false
    }
  }
}
`, engine.Host, realisticBridge, realisticSubnet, world, reports))
	t.Cleanup(func() {
		var err error
		if allocs, _, err = agent.Allocations().List(nil); err != nil || len(allocs) == 0 {
			t.Errorf("%d allocations, %v", len(allocs), err)
		}
	})
	agent.WaitUntil("the driver docker is healthy", func() (string, bool) {
		node, _, err := agent.Nodes().Info(agent.NodeID, nil)
		if err != nil || node.Drivers["docker"] == nil {
			return fmt.Sprint(err), false
		}
		return node.Drivers["docker"].HealthDescription, node.Drivers["docker"].Healthy
	})

	checks := map[string]func(*realisticJob){
		"api-bluegreen": checkBlueGreen,
		"api-canary":    checkCanary,
		"ci-runner":     checkCIRunner,
		"cleanup-cron":  checkCleanup,
		"drain":         checkDrain,
		"environments":  checkEnvironments,
		"etl":           func(j *realisticJob) { checkETL(j, reports) },
		"feature-flags": checkFeatureFlags,
		"flaky-import":  checkFlakyImport,
		"game-server":   checkGameServer,
		"guestbook":     checkGuestbook,
		"hardened":      checkHardened,
		"ingress":       checkIngress,
		"inventory":     checkInventory,
		"kvstore":       checkKVStore,
		"log-shipper":   checkLogShipper,
		"monitoring":    checkMonitoring,
		"node-agent":    checkNodeAgent,
		"sandbox":       checkSandbox,
		"shards":        checkShards,
		"shop":          checkShop,
		"static-site":   checkStaticSite,
		"thumbnails":    checkThumbnails,
		"vaulted-store": checkVaultedStore,
		"watchdog":      checkWatchdog,
	}
	companions := []string{"backup"} // run by the check of another file
	// The checks of these files wait for deployments, restarts, intervals of checks or shutdowns.
	slow := []string{
		"api-bluegreen", "api-canary", "drain", "feature-flags", "flaky-import", "game-server", "guestbook", "ingress",
		"kvstore", "log-shipper", "monitoring", "shop", "static-site", "vaulted-store", "watchdog",
	}
	files, err := filepath.Glob(realisticDir + "/*.nomad.hcl")
	if err != nil || len(files) != len(checks)+len(companions) {
		t.Fatalf("%d job files, %v, want %d", len(files), err, len(checks)+len(companions))
	}
	t.Run("jobs", func(t *testing.T) {
		for name, check := range checks {
			t.Run(name, func(t *testing.T) {
				if slices.Contains(slow, name) {
					slowtest.Skip(t, "waits for seconds")
				}
				t.Parallel()
				tested := *agent
				tested.T = t
				check(&realisticJob{TestAgent: &tested, file: name})
			})
		}
	})
}

// assertNoNetworks asserts that the networks of the allocations, their bridge and its rules are removed.
func assertNoNetworks(t *testing.T, allocs []*api.AllocationListStub) {
	if link, err := net.InterfaceByName(realisticBridge); err == nil {
		t.Errorf("the bridge remains: %v", link)
	}
	if rules, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || strings.Contains(string(rules), realisticBridge) {
		t.Errorf("rules remain: %v\n%s", err, rules)
	}
	for _, a := range allocs {
		if _, err := os.Lstat(netns.Path(a.ID)); err == nil {
			t.Errorf("the network namespace of an allocation of %s remains", a.JobID)
		}
	}
}

// importServiceImages builds the program of the images and imports the images that the job files
// name.
func importServiceImages(t *testing.T, engine *dockertest.Engine) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "services")
	systemtest.BuildStaticProgram(t, path, "./cmd/nomad-lite/systemtest/jobs/"+realisticDir+"/images/services")
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	engine.ImportBusyboxImage(t, "busybox:1.36", nil, `CMD ["sh"]`)
	files := map[string][]byte{"bin/services": program}
	for image, service := range map[string]string{
		"kvstore:7.2": "kvstore", "kvstore:7.4": "kvstore",
		"registry.example.com/shop/web:1.0.0": "webapp", "registry.example.com/shop/web:1.1.0": "webapp",
		"registry.example.com/edge/proxy:2.1": "proxy", "registry.example.com/ops/monitor:3.0": "monitor",
		"registry.example.com/games/sandbox:1.20": "game", "registry.example.com/games/sandbox:1.21": "game",
	} {
		_, tag, _ := strings.Cut(image, ":")
		engine.ImportBusyboxImage(t, image, files, fmt.Sprintf(`ENTRYPOINT ["/bin/services", %q]`, service), "ENV APP_VERSION="+tag)
	}
}

// realisticJob is a job of one of the files.
type realisticJob struct {
	*systemtest.TestAgent
	file string
	id   string // id of the job; set by run
}

// waitUntil is TestAgent.WaitUntil with fewer calls, because many jobs wait at the same time.
func (j *realisticJob) waitUntil(what string, is func() (string, bool)) {
	j.T.Helper()
	j.TestAgent.WaitUntil(what, func() (string, bool) {
		text, ok := is()
		if !ok {
			time.Sleep(100 * time.Millisecond)
		}
		return text, ok
	})
}

// run registers the job as a user does. The variables have the form name=value.
func (j *realisticJob) run(vars ...string) {
	j.T.Helper()
	args := []string{"job", "run", "-detach", "-address", j.Address}
	for _, v := range vars {
		args = append(args, "-var", v)
	}
	path := filepath.Join(realisticDir, j.file+".nomad.hcl")
	if out, err := exec.Command("nomad-lite", append(args, path)...).CombinedOutput(); err != nil {
		j.T.Fatalf("run %s: %v\n%s", j.file, err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		j.T.Fatal(err)
	}
	j.id = string(regexp.MustCompile(`(?m)^job "([^"]+)"`).FindSubmatch(text)[1])
}

// allocs returns the allocations of the job, the newest first.
func (j *realisticJob) allocs() []*api.AllocationListStub {
	j.T.Helper()
	stubs, _, err := j.Jobs().Allocations(j.id, false, nil)
	if err != nil {
		j.T.Fatal(err)
	}
	slices.SortFunc(stubs, func(a, b *api.AllocationListStub) int { return int(b.CreateIndex) - int(a.CreateIndex) })
	return stubs
}

// waitStatus waits until so many allocations have the status.
func (j *realisticJob) waitStatus(status string, count int) {
	j.T.Helper()
	j.waitUntil(fmt.Sprintf("%d allocations of %s are %s", count, j.id, status), func() (string, bool) {
		found, text := 0, ""
		for _, a := range j.allocs() {
			if a.ClientStatus == status {
				found++
			}
			text += fmt.Sprintf("%s %s; ", a.ClientStatus, a.ClientDescription)
		}
		return text, found == count
	})
}

func (j *realisticJob) waitDeployment(status string) {
	j.T.Helper()
	j.waitUntil("the deployment of "+j.id+" is "+status, func() (string, bool) {
		d, _, err := j.Jobs().LatestDeployment(j.id, nil)
		if err != nil || d == nil {
			return fmt.Sprint(err), false
		}
		job, _, err := j.Jobs().Info(j.id, nil)
		return fmt.Sprint(d.Status, " ", d.StatusDescription, err), err == nil && d.Status == status && d.JobVersion == *job.Version
	})
}

// log returns the output of a task in all allocations of the job.
func (j *realisticJob) log(task string) string {
	j.T.Helper()
	var all strings.Builder
	for _, a := range j.allocs() {
		for _, stream := range []string{"stdout", "stderr"} {
			query := url.Values{"task": {task}, "type": {stream}, "origin": {"start"}, "plain": {"true"}}
			answer, err := j.HTTPClient.Get(j.Address + "/v1/client/fs/logs/" + a.ID + "?" + query.Encode())
			if err != nil {
				j.T.Fatal(err)
			}
			if answer.StatusCode == http.StatusOK {
				_, _ = io.Copy(&all, answer.Body) // a part is read again
			}
			answer.Body.Close()
		}
	}
	return all.String()
}

// waitLog waits until the output of a task matches.
func (j *realisticJob) waitLog(task, pattern string) {
	j.T.Helper()
	want := regexp.MustCompile(pattern)
	j.waitUntil(fmt.Sprintf("the output of %s matches %s", task, pattern), func() (string, bool) {
		text := j.log(task)
		return text, want.MatchString(text)
	})
}

// instances returns the base URLs of the instances of a service.
func (j *realisticJob) instances(service string, tags ...string) (found []string) {
	j.T.Helper()
	list, _, err := j.Services().Get(service, nil)
	if err != nil {
		j.T.Fatal(err)
	}
	for _, s := range list {
		if slices.Equal(s.Tags, tags) || len(tags) == 0 {
			found = append(found, "http://"+net.JoinHostPort(s.Address, fmt.Sprint(s.Port)))
		}
	}
	return found
}

// waitBodies waits until a service has so many instances and the answer of each matches all patterns.
func (j *realisticJob) waitBodies(service string, count int, path string, patterns ...string) {
	j.T.Helper()
	j.waitUntil(fmt.Sprintf("%d instances of %s answer %q", count, service, patterns), func() (string, bool) {
		text, ok := "", true
		instances := j.instances(service)
		for _, base := range instances {
			body, err := request(http.MethodGet, base+path, "")
			text += fmt.Sprintf("%s: %s %v; ", base, body, err)
			for _, p := range patterns {
				ok = ok && err == nil && regexp.MustCompile(p).MatchString(body)
			}
		}
		return text, ok && len(instances) == count
	})
}

// requestService sends a request to the only instance of a service.
func (j *realisticJob) requestService(method, service, path, body string) string {
	j.T.Helper()
	instances := j.instances(service)
	if len(instances) != 1 {
		j.T.Fatalf("%d instances of %s, want 1", len(instances), service)
	}
	answer, err := request(method, instances[0]+path, body)
	if err != nil {
		j.T.Fatal(err)
	}
	return answer
}

var realisticClient = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// request returns the body of an answer. An answer other than OK is an error.
func request(method, target, body string) (string, error) {
	r, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := realisticClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", answer.Status)
	}
	return string(text), err
}

func (j *realisticJob) putVariable(path string, items api.VariableItems) {
	j.T.Helper()
	if _, _, err := j.Variables().Update(&api.Variable{Path: path, Items: items}, nil); err != nil {
		j.T.Fatal(err)
	}
}

// dispatch starts a child of the job and returns it.
func (j *realisticJob) dispatch(meta map[string]string, payload string) *realisticJob {
	j.T.Helper()
	answer, _, err := j.Jobs().Dispatch(j.id, meta, []byte(payload), "", nil)
	if err != nil {
		j.T.Fatal(err)
	}
	return &realisticJob{TestAgent: j.TestAgent, id: answer.DispatchedJobID}
}

// forcePeriodic starts a periodic job now.
func (j *realisticJob) forcePeriodic() {
	j.T.Helper()
	if _, _, err := j.Jobs().PeriodicForce(j.id, nil); err != nil {
		j.T.Fatal(err)
	}
}

func (j *realisticJob) waitFile(path string) []byte {
	j.T.Helper()
	var content []byte
	j.waitUntil("the file "+path, func() (string, bool) {
		var err error
		content, err = os.ReadFile(path)
		return fmt.Sprint(err), err == nil
	})
	return content
}

// restarts returns the number of restarts of a task of the newest allocation.
func (j *realisticJob) restarts(task string) uint64 {
	j.T.Helper()
	state := j.allocs()[0].TaskStates[task]
	if state == nil {
		return 0
	}
	return state.Restarts
}

func checkStaticSite(j *realisticJob) {
	j.run()
	j.waitBodies("static-site", 1, "/index.html", "<h1>Welcome</h1>")
	j.run("headline=Summer sale")
	j.waitBodies("static-site", 1, "/index.html", "<h1>Summer sale</h1>")
	j.waitDeployment("successful")
}

func checkKVStore(j *realisticJob) {
	j.run()
	j.waitBodies("kvstore", 1, "/", "PONG")
	j.requestService(http.MethodPut, "kvstore", "/color", "blue")
	alloc := j.ReadAlloc(j.allocs()[0].ID)
	if err := j.Allocations().Restart(alloc, "", nil); err != nil {
		j.T.Fatal(err)
	}
	j.waitBodies("kvstore", 1, "/color", "^blue$")
	j.run("version=7.4")
	j.waitUntil("the new version runs", func() (string, bool) {
		a := j.allocs()[0]
		return fmt.Sprint(a.JobVersion, a.ClientStatus), a.JobVersion == 1 && a.ClientStatus == "running"
	})
	j.waitBodies("kvstore", 1, "/color", "^blue$")
}

func checkShop(j *realisticJob) {
	j.run()
	j.waitBodies("shop-web", 1, "/", "everything must go", `visits [1-9]\d*`)
	j.requestService(http.MethodPut, "shop-db", "/visits", "1000")
	for _, a := range j.allocs() {
		if a.TaskGroup == "database" {
			if _, err := j.Allocations().Stop(&api.Allocation{ID: a.ID}, nil); err != nil {
				j.T.Fatal(err)
			}
		}
	}
	j.waitUntil("the database is replaced", func() (string, bool) {
		a := j.allocs()[0]
		return a.TaskGroup + " " + a.ClientStatus, len(j.allocs()) == 3 && a.ClientStatus == "running"
	})
	j.waitBodies("shop-web", 1, "/", `visits 10\d\d`)
}

func checkIngress(j *realisticJob) {
	port := peers.FindFreePorts(j.T, 1)[0]
	j.run(fmt.Sprintf("port=%d", port))
	front := ""
	j.waitUntil("the proxy is registered", func() (string, bool) {
		instances := j.instances("ingress")
		if len(instances) == 1 {
			front = instances[0]
		}
		return fmt.Sprint(instances), len(instances) == 1
	})
	if !strings.HasSuffix(front, fmt.Sprint(":", port)) {
		j.T.Errorf("the proxy is at %s, want the static port %d", front, port)
	}
	seen := map[string]bool{}
	waitBackends := func(count int) {
		j.waitUntil(fmt.Sprintf("%d backends answer", count), func() (string, bool) {
			body, err := request(http.MethodGet, front, "")
			if name := regexp.MustCompile(`backend/\d`).FindString(body); name != "" {
				seen[name] = true
			}
			return fmt.Sprint(seen, err), len(seen) == count
		})
	}
	waitBackends(2)
	// The port is forwarded from all addresses of the machine.
	if _, err := request(http.MethodGet, fmt.Sprint("http://127.0.0.1:", port), ""); err != nil {
		j.T.Error(err)
	}
	j.waitDeployment("successful") // a job cannot be scaled before
	count := 3
	if _, _, err := j.Jobs().Scale(j.id, "backend", &count, "more visitors", false, nil, nil); err != nil {
		j.T.Fatal(err)
	}
	waitBackends(3)
}

// checkGameServer has one player, who stays while the server is restarted and upgraded.
func checkGameServer(j *realisticJob) {
	port := peers.FindFreePorts(j.T, 1)[0]
	player, err := net.Dial("udp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		j.T.Fatal(err)
	}
	defer player.Close()
	waitAnswer := func(message, world string) {
		j.T.Helper()
		want := message + " -> " + world
		j.waitUntil(fmt.Sprintf("the server answers %q", want), func() (string, bool) {
			answer := make([]byte, 1500)
			_ = player.SetDeadline(time.Now().Add(time.Second)) // the answer is asserted
			_, sendErr := player.Write([]byte(message))
			n, err := player.Read(answer)
			return fmt.Sprintf("%q %v %v", answer[:n], sendErr, err), string(answer[:n]) == want
		})
	}
	j.run(fmt.Sprintf("port=%d", port))
	waitAnswer("look", "1.20:")
	waitAnswer("build castle", "1.20: castle")
	if err := j.Allocations().Restart(j.ReadAlloc(j.allocs()[0].ID), "", nil); err != nil {
		j.T.Fatal(err)
	}
	j.waitUntil("the task is restarted", func() (string, bool) {
		n := j.restarts("server")
		return fmt.Sprint(n), n == 1
	})
	waitAnswer("look after the restart", "1.20: castle")
	j.run(fmt.Sprintf("port=%d", port), "version=1.21")
	waitAnswer("look after the upgrade", "1.21: castle")
}

func checkCanary(j *realisticJob) {
	j.run("version=1.0.0")
	j.waitDeployment("successful")
	j.waitBodies("api", 2, "/", "shop 1.0.0")
	j.run("version=1.1.0")
	j.waitUntil("a healthy canary", func() (string, bool) {
		d, _, err := j.Jobs().LatestDeployment(j.id, nil)
		if err != nil {
			return err.Error(), false
		}
		state := d.TaskGroups["api"]
		return fmt.Sprintf("%+v", state), d.JobVersion == 1 && state.HealthyAllocs == 1
	})
	for tag, want := range map[string]string{"canary": "shop 1.1.0", "live": "shop 1.0.0"} {
		for _, base := range j.instances("api", tag) {
			if body, err := request(http.MethodGet, base, ""); err != nil || !strings.HasPrefix(body, want) {
				j.T.Errorf("the instance with the tag %s answers %q, %v, want %s", tag, body, err, want)
			}
		}
	}
	if live, canaries := j.instances("api", "live"), j.instances("api", "canary"); len(live) != 2 || len(canaries) != 1 {
		j.T.Errorf("%d live instances and %d canaries, want 2 and 1", len(live), len(canaries))
	}
	d, _, err := j.Jobs().LatestDeployment(j.id, nil)
	if err != nil {
		j.T.Fatal(err)
	}
	if _, _, err := j.Deployments().PromoteAll(d.ID, nil); err != nil {
		j.T.Fatal(err)
	}
	j.waitDeployment("successful")
	j.waitBodies("api", 2, "/", "shop 1.1.0")
}

func checkBlueGreen(j *realisticJob) {
	j.run("version=1.0.0")
	j.waitDeployment("successful")
	j.waitBodies("accounts", 2, "/", "shop 1.0.0")
	j.run("version=1.1.0")
	j.waitDeployment("successful")
	j.waitBodies("accounts", 2, "/", "shop 1.1.0")
}

func checkCleanup(j *realisticJob) {
	dir := j.T.(*testing.T).TempDir()
	old, young := filepath.Join(dir, "old.png"), filepath.Join(dir, "young.png")
	for path, age := range map[string]time.Duration{old: 48 * time.Hour, young: time.Hour} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			j.T.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			j.T.Fatal(err)
		}
	}
	j.run("uploads=" + dir)
	j.forcePeriodic()
	j.waitUntil("the old file is removed", func() (string, bool) {
		_, err := os.Stat(old)
		return fmt.Sprint(err), os.IsNotExist(err)
	})
	if _, err := os.Stat(young); err != nil {
		j.T.Error(err)
	}
}

func checkETL(j *realisticJob, reports string) {
	var export bytes.Buffer
	compressed := gzip.NewWriter(&export)
	w := tar.NewWriter(compressed)
	csv := "country,amount\nde,10\nfr,5\nde,7\n"
	if err := w.WriteHeader(&tar.Header{Name: "sales.csv", Mode: 0o644, Size: int64(len(csv))}); err != nil {
		j.T.Fatal(err)
	}
	if _, err := io.WriteString(w, csv); err != nil {
		j.T.Fatal(err)
	}
	w.Close()
	compressed.Close()
	t := j.T.(*testing.T)
	served := t.TempDir()
	if err := os.WriteFile(filepath.Join(served, "export.tar.gz"), export.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(served)))
	t.Cleanup(server.Close)
	j.run("export_url=" + server.URL + "/export.tar.gz")
	j.waitStatus("complete", 1)
	report := filepath.Join(reports, "sales-sales-report.csv")
	if got := string(j.waitFile(report)); got != "de,17\nfr,5\n" {
		t.Errorf("the report is %q", got)
	}
	if info, err := os.Stat(report); err != nil || info.Sys().(*syscall.Stat_t).Uid != nobody {
		t.Errorf("the report is not of the user of the task: %+v, %v", info, err)
	}
	states := j.allocs()[0].TaskStates
	for _, order := range [][2]string{{"extract", "transform"}, {"transform", "publish"}} {
		first, second := states[order[0]], states[order[1]]
		if first.FinishedAt.IsZero() || second.StartedAt.Before(first.FinishedAt) {
			t.Errorf("%s was started at %s, before %s ended at %s", order[1], second.StartedAt, order[0], first.FinishedAt)
		}
	}
}

func checkThumbnails(j *realisticJob) {
	j.run()
	ada := j.dispatch(map[string]string{"user": "ada"}, "An analytical engine can compute Bernoulli numbers\n")
	bob := j.dispatch(map[string]string{"user": "bob", "width": "5"}, "Second text\n")
	ada.waitLog("render", `^preview for ada: An analytical engine\n$`)
	bob.waitLog("render", `^preview for bob: Secon\n$`)
	ada.waitStatus("complete", 1)
}

func checkCIRunner(j *realisticJob) {
	j.putVariable("nomad/jobs/ci-runner", api.VariableItems{"deploy_key": "s3cret"})
	j.run()
	good := j.dispatch(map[string]string{"commit": "0badcafe"}, "test -n \"$NOMAD_TOKEN\"\necho deploy with $DEPLOY_KEY\n")
	bad := j.dispatch(map[string]string{"commit": "deadbeef"}, "echo 1 test failed\nexit 3\n")
	good.waitStatus("complete", 1)
	good.waitLog("build", `^building 0badcafe\ndeploy with s3cret\n`)
	bad.waitStatus("failed", 1)
	bad.waitLog("build", `^building deadbeef\n1 test failed\n`)
}

func checkGuestbook(j *realisticJob) {
	j.run()
	j.waitBodies("guestbook", 1, "/data/schema", "^v3$")
	j.waitBodies("guestbook", 1, "/", `visits [1-9]`)
	j.requestService(http.MethodPut, "guestbook", "/data/entry", "greetings from Lovelace")
	backup := &realisticJob{TestAgent: j.TestAgent, file: "backup"}
	dir := j.T.(*testing.T).TempDir()
	backup.run("backup_dir=" + dir)
	backup.forcePeriodic()
	j.waitUntil("the backup is complete", func() (string, bool) {
		out, err := exec.Command("tar", "-xzOf", filepath.Join(dir, "guestbook.tar.gz"), "./entry").CombinedOutput()
		return fmt.Sprint(string(out), err), string(out) == "greetings from Lovelace"
	})
	if text := j.log("announce"); text != "" {
		j.T.Errorf("the poststop task has run before the job is stopped: %s", text)
	}
	if _, _, err := j.Jobs().Deregister(j.id, false, nil); err != nil {
		j.T.Fatal(err)
	}
	j.waitLog("announce", "^the guest book is closed\n$")
}

func checkLogShipper(j *realisticJob) {
	j.run()
	j.waitLog("shipper", "^order=1 status=paid\norder=2 status=paid\n")
}

func checkFeatureFlags(j *realisticJob) {
	j.putVariable("nomad/jobs/frontend", api.VariableItems{"banner": "spring sale"})
	j.run()
	j.waitBodies("frontend", 1, "/", "spring sale")
	j.putVariable("nomad/jobs/frontend", api.VariableItems{"banner": "closed for inventory"})
	j.waitBodies("frontend", 1, "/", "closed for inventory")
	if n := j.restarts("frontend"); n != 0 {
		j.T.Errorf("the task was restarted %d times, want a signal only", n)
	}
}

func checkVaultedStore(j *realisticJob) {
	j.putVariable("nomad/jobs/sessions", api.VariableItems{"password": "first"})
	j.run()
	accepts := func(password string) (string, bool) {
		instances := j.instances("sessions")
		if len(instances) != 1 {
			return fmt.Sprint(instances), false
		}
		body, err := request(http.MethodGet, strings.Replace(instances[0], "://", "://app:"+password+"@", 1), "")
		return fmt.Sprint(body, err), err == nil
	}
	j.waitUntil("the password is accepted", func() (string, bool) { return accepts("first") })
	j.putVariable("nomad/jobs/sessions", api.VariableItems{"password": "second"})
	j.waitUntil("the new password is accepted", func() (string, bool) { return accepts("second") })
	if answer, ok := accepts("first"); ok {
		j.T.Errorf("the old password is accepted: %s", answer)
	}
}

func checkMonitoring(j *realisticJob) {
	j.run()
	j.waitBodies("monitor", 1, "/targets", "web-exporter up", "host-exporter up")
	subnet := netip.MustParsePrefix(realisticSubnet)
	for service, onBridge := range map[string]bool{"web-exporter": true, "host-exporter": false} {
		for _, base := range j.instances(service) {
			address, err := netip.ParseAddrPort(strings.TrimPrefix(base, "http://"))
			if err != nil || subnet.Contains(address.Addr()) != onBridge {
				j.T.Errorf("%s is at %s, %v, want on the bridge: %t", service, base, err, onBridge)
			}
		}
	}
}

func checkNodeAgent(j *realisticJob) {
	j.run()
	j.waitLog("df", `(?m)^node=\S+ disk=\d+%$`)
}

func checkFlakyImport(j *realisticJob) {
	j.run()
	j.waitStatus("complete", 1)
	j.waitLog("import", "attempt 3: 42 rates imported")
	if n := j.restarts("import"); n != 2 {
		j.T.Errorf("the task was restarted %d times, want twice", n)
	}
}

func checkShards(j *realisticJob) {
	j.run()
	j.waitStatus("complete", 3)
	for product := range 9 {
		j.waitLog("reindex", fmt.Sprintf(`(?m)^shard %d: product %d$`, product%3, product))
	}
}

func checkInventory(j *realisticJob) {
	j.run()
	j.waitStatus("complete", 1)
	j.waitLog("kernel", "^Linux ")
	j.waitLog("container", "^runtime: BusyBox")
}

func checkDrain(j *realisticJob) {
	j.run()
	j.waitBodies("checkout", 1, "/", "shop 1.0.0")
	if _, _, err := j.Jobs().Deregister(j.id, false, nil); err != nil {
		j.T.Fatal(err)
	}
	j.waitUntil("the service is left first", func() (string, bool) {
		return j.log("web"), len(j.instances("checkout")) == 0
	})
	if text := j.log("web"); strings.Contains(text, "draining") {
		j.T.Errorf("the task was stopped before its service: %s", text)
	}
	j.waitStatus("complete", 1)
	j.waitLog("web", "draining connections\nbye\n$")
}

func checkHardened(j *realisticJob) {
	j.run()
	j.waitBodies("intranet", 1, "/report", `(?m)^65534$`, "Read-only file system", `(?m)^scratch$`, `(?m)^CapEff:\s+0+$`)
}

func checkSandbox(j *realisticJob) {
	j.run()
	j.waitStatus("complete", 1)
	j.waitLog("solution", "^tests: PONG\nhost: grader, interfaces: lo \n$")
}

func checkWatchdog(j *realisticJob) {
	j.run()
	j.waitBodies("legacy-cms", 1, "/", "shop 1.0.0")
	j.requestService(http.MethodPost, "legacy-cms", "/break", "")
	j.waitUntil("the check restarts the task", func() (string, bool) {
		text, err := json.Marshal(j.allocs()[0].TaskStates)
		return fmt.Sprint(string(text), err), j.restarts("web") > 0
	})
	j.waitBodies("legacy-cms", 1, "/healthz", "^$")
}

func checkEnvironments(j *realisticJob) {
	j.run()
	j.waitBodies("greeter-staging", 1, "/", "shop 1.1.0 in staging/0: hello testers")
	j.waitBodies("greeter-production", 2, "/", "shop 1.1.0 in production/[01]: hello customers")
}
