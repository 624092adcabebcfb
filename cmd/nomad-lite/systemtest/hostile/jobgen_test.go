package hostile

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/hostile/attack"
)

// hostileImage has the probe.
const hostileImage = "nomad-lite-hostile:1"

// linkTargetsInImage are links in the image. A destination through one of them is another one than its text.
var linkTargetsInImage = map[string]string{"to-root": "/", "to-shared": "/shared", "to-proc": "/proc/1/root", "shared/below": "/", "local/link": "../../shared"}

// destinationsThroughLinks are destinations for mounts through the links.
var destinationsThroughLinks = []string{"/to-root/mnt0", "/to-root/shared/below", "/to-shared", "/to-shared/below", "/to-proc", "/to-proc/mnt0", "/shared/below", "/shared/below/shared", "/local/link", "/local/link/below"}

// jobGenerator makes random jobs with hostile values. The seed of its random numbers determines the jobs, except for the paths
// and the process ids of the world.
type jobGenerator struct {
	*rand.Rand
	world    *hostileWorld
	operator *operator
	docker   bool // the node has the driver docker; without it, the same seed makes the same job without its docker tasks
	id       string
}

// hostileJob is a job, and what the oracle must know about its tasks.
type hostileJob struct {
	*api.Job
	tasks map[string]taskFacts // by "group/task"
	uids  map[string]string    // of the processes of tasks, as their probes have reported them
}

// taskFacts are the facts about a task that the author of the job has chosen, and that change what its probe can obtain.
type taskFacts struct {
	driver      string
	attacks     bool   // the task runs the attacks
	networkMode string // of the group, or of the container
	cgroupns    bool   // the container names a namespace of cgroups that is not its own
	unlogged    bool   // the output of the container can be lost, because the job names a log driver
	devices     bool   // the container names devices of the machine, which docs/reference/docker.md allows to each job
}

func pick[T any](g *jobGenerator, values []T) T { return values[g.IntN(len(values))] }

func (g *jobGenerator) oneIn(n int) bool { return g.IntN(n) == 0 }

// job returns a job with one to three groups.
func (g *jobGenerator) job() *hostileJob {
	j := &hostileJob{Job: api.NewBatchJob(g.id, g.id, api.GlobalRegion, 50), tasks: map[string]taskFacts{}, uids: map[string]string{}}
	for n := range 1 + g.IntN(3) {
		group, facts := g.group(fmt.Sprint("g", n))
		if len(group.Tasks) == 0 {
			continue
		}
		j.AddTaskGroup(group)
		for task, f := range facts {
			j.tasks[*group.Name+"/"+task] = f
		}
	}
	return j
}

func (g *jobGenerator) group(name string) (*api.TaskGroup, map[string]taskFacts) {
	group := api.NewTaskGroup(name, 1)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	mode := pick(g, []string{"host", "host", "bridge", "none"})
	if mode != "host" {
		group.Networks = []*api.NetworkResource{{Mode: mode}}
		if g.oneIn(4) {
			group.Networks[0].Hostname = pick(g, g.hostileTexts())
		}
	}
	facts := map[string]taskFacts{}
	add := func(t *api.Task, f taskFacts) {
		if f.driver == "docker" && !g.docker {
			return
		}
		group.AddTask(t)
		facts[t.Name] = f
	}
	g.addVolumes(group)
	if !g.oneIn(4) {
		maker := g.execTask("maker", "make", "/alloc/data")
		setPrestart(maker, false)
		add(maker, taskFacts{driver: "exec", networkMode: mode})
		swapper := g.execTask("swapper", "swap", "/alloc/data")
		setPrestart(swapper, true)
		add(swapper, taskFacts{driver: "exec", networkMode: mode})
	}
	for n := range 1 + g.IntN(2) {
		task, f := g.attacker(fmt.Sprint("t", n), group)
		if f.networkMode == "" {
			f.networkMode = mode
		}
		add(task, f)
	}
	if !slices.ContainsFunc(group.Tasks, func(t *api.Task) bool { return t.Lifecycle == nil }) {
		group.Tasks = nil
	}
	return group, facts
}

func setPrestart(t *api.Task, sidecar bool) {
	t.Lifecycle = &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart, Sidecar: sidecar}
}

// addVolumes adds requests for the host volumes of the world.
func (g *jobGenerator) addVolumes(group *api.TaskGroup) {
	if !g.oneIn(3) {
		return
	}
	group.Volumes = map[string]*api.VolumeRequest{}
	for _, name := range hostVolumes {
		group.Volumes[name] = &api.VolumeRequest{Name: name, Type: "host", Source: name}
	}
}

// execTask returns a task that runs a mode of the probe.
func (g *jobGenerator) execTask(name string, args ...string) *api.Task {
	task := api.NewTask(name, "exec").SetConfig("command", probeInChroot).SetConfig("args", args)
	g.setCommon(task)
	return task
}

func (g *jobGenerator) setCommon(task *api.Task) {
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(64)}
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	task.KillTimeout = new(time.Second)
	task.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
}

// attacker returns a task that runs all attacks, with up to three hostile values.
func (g *jobGenerator) attacker(name string, group *api.TaskGroup) (*api.Task, taskFacts) {
	var task *api.Task
	facts := taskFacts{driver: "exec", attacks: true}
	options := g.execOptions(&facts)
	if !g.oneIn(3) && g.operator.hasDocker {
		facts.driver = "docker"
		task = api.NewTask(name, "docker").SetConfig("image", hostileImage).SetConfig("entrypoint", []string{probeInImage, "attack"})
		g.setCommon(task)
		options = g.dockerOptions(&facts)
	} else {
		task = g.execTask(name, "attack")
		task.User = pick(g, []string{"", "nobody", "4010", "nomad-4011", "65534:65534"})
		if len(g.operator.grants) > 0 && g.oneIn(2) {
			task.SetConfig("cap_add", g.operator.grants)
		}
	}
	targets := g.world.targets
	targets.ProbeTaskName = g.id + "/" + *group.Name + "/" + name
	targets.UnreadableFiles = slices.Concat(targets.UnreadableFiles, g.operator.canaries)
	targets.MountPoints = []string{"/outer", "/shared", "/mnt0", "/mnt1", "/alloc/data/root", "/alloc/data/proc", "/alloc/data/" + attack.SwappedFile}
	targets.WritableDirs = []string{"/local", "/secrets", "/tmp", "/alloc/data", "/alloc/tmp", "/outer", "/shared", "/dev/shm", "/mnt0", "/mnt1"}
	task.Env = map[string]string{attack.TargetsEnvVar: encodeJSON(targets)}
	for _, label := range hostVolumes {
		if group.Volumes[label] != nil && g.oneIn(2) {
			task.VolumeMounts = append(task.VolumeMounts, &api.VolumeMount{
				Volume: new(label), Destination: new("/" + label), PropagationMode: new(pick(g, []string{"private", "private", "host-to-task", "bidirectional"})),
			})
		}
	}
	if facts.driver == "docker" && g.oneIn(8) {
		// A start that fails for another reason does not read the profile.
		set("security_opt", []string{"seccomp=../alloc/data/" + pick(g, []string{"fifo", "sparse"})})(task)
		return task, facts
	}
	if len(group.Volumes) > 0 && g.oneIn(3) {
		g.nestVolumes(task)
		return task, facts
	}
	options = append(options, g.commonOptions(group)...)
	for range pick(g, []int{0, 1, 1, 1, 2, 3}) { // most hostile values alone make the start fail
		pick(g, options)(task)
	}
	return task, facts
}

// hostileTexts are values that a parser, a path or a terminal can misunderstand.
func (g *jobGenerator) hostileTexts() []string {
	return []string{"", " ", "..", "../..", "/", "a/../../b", "-rf", "--", "${env.PATH}", "${NOMAD_SECRETS_DIR}", "a\nb", "a\x00b", "\u202etxt", "\u009b31m", "ｅ", strings.Repeat("a", 5000), "host ", "%s%n"}
}

// hostilePaths are paths of the machine, in many forms, and paths of the hostile files of the allocation.
func (g *jobGenerator) hostilePaths() []string {
	w := g.world
	paths := []string{
		w.canaryDir, w.canaryDir + "/.", "/" + w.canaryDir, filepath.Dir(w.canaryDir) + "/./" + filepath.Base(w.canaryDir), "/", "//", "/.", "/..", "..", "../..", "../../..",
		"../../../../../../../.." + w.canaryDir, "local/../../../../../../../.." + w.canaryDir, "/proc/1/root", "/proc/self/root", "/proc/self/cwd", fmt.Sprintf("/proc/%d/root", os.Getpid()),
		"/dev", "/dev/mem", "/dev/zero", "/sys", "/run", "/etc", "/etc/shadow", "../private", "../alloc", "local", "alloc", "secrets", "/alloc/data", "${NOMAD_ALLOC_DIR}", "${NOMAD_TASK_DIR}/../..",
		w.engineSocket, w.canary, g.operator.dataDir, filepath.Join(g.operator.dataDir, "alloc"), filepath.Join(g.operator.dataDir, "token"), g.operator.victimDir, g.operator.victimDir + "/victim/secrets",
		"a:b", "", " ", "\u202e", strings.Repeat("a/", 3000),
	}
	for _, name := range append([]string{attack.SwappedFile, attack.SwappedFile, attack.SwappedFile}, attack.HostileFiles...) {
		paths = append(paths, "../alloc/data/"+name, "../alloc/data/"+name+w.canaryDir, "../alloc/data/./"+name)
	}
	return paths
}

// hostileUsers are users that the operator denies, in many forms, and texts that are no users.
var hostileUsers = []string{
	"0", "00", "0000000000", "root", "0:0", "0:65534", "root:root", "root:nogroup", "nobody:0", "nobody:root", "65534:0", "65534:00", "4001:0", "4001:root", "nomad-0", "nomad-00", "nomad-0:0", "daemon:0",
	" root", "root ", "ROOT", "Root", "+0", "-0", "-1", "0x0", "0o0", "0.0", "0e0", "4294967295", "4294967296", "18446744073709551616", "０", "rооt", "root\x00", "root\n", "root:", ":0", ":", "nobody:", "nobody:-1",
	"nobody:0:0", "nobody::0", "${env.USER}", "${NOMAD_META_user}", "../root", "/etc/passwd", "sys", "bin", "daemon", "1", "2:2", "nobody:shadow", "nobody:disk",
}

var hostileCapabilities = []string{
	"setuid", "SETUID", "cap_setuid", "CAP_SETGID", "setgid", "setfcap", "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "mknod", "kill", "setpcap", "sys_chroot", "net_bind_service", "audit_write",
	"net_raw", "net_admin", "sys_admin", "sys_ptrace", "sys_module", "sys_rawio", "bpf", "perfmon", "checkpoint_restore", "block_suspend", "syslog", "all", "ALL", "cap_all", "CAP_CAP_SETUID", " setuid", "ſetuid", "",
}

func (g *jobGenerator) capabilities() []string {
	if g.oneIn(2) {
		return []string{pick(g, hostileCapabilities)}
	}
	return []string{pick(g, hostileCapabilities[:13]), pick(g, hostileCapabilities[:18])}
}

// namespaceModes are the modes of namespaces of engines and of Nomad, in many forms.
func namespaceModes(namespace string) []string {
	return []string{
		"host", "host", "host", "HOST", "Host", " host", "host ", "hos\u200bt", "private", "shareable", "none", "container:x", "container:nomad_init_x", "ns:/proc/1/ns/" + namespace, "ns:/proc/1/ns/" + namespace,
		fmt.Sprintf("ns:/proc/%d/ns/%s", os.Getpid(), namespace), "ns:/proc/self/ns/" + namespace, "path:/proc/1/ns/" + namespace, "/proc/1/ns/" + namespace, "pod", "slirp4netns", "keep-id", "auto", "nomap",
	}
}

func set(key string, value any) func(*api.Task) { return func(t *api.Task) { t.SetConfig(key, value) } }

// weighted repeats an option.
func weighted(n int, option func(*api.Task)) (all []func(*api.Task)) {
	for range n {
		all = append(all, option)
	}
	return all
}

func (g *jobGenerator) execOptions(facts *taskFacts) []func(*api.Task) {
	options := []func(*api.Task){
		func(t *api.Task) { set("cap_drop", g.capabilities())(t) },
		func(t *api.Task) { set("work_dir", pick(g, g.hostilePaths()))(t) },
		func(t *api.Task) {
			facts.attacks = false
			set("command", pick(g, g.hostilePaths()))(t)
		},
		func(t *api.Task) { set("oom_score_adj", pick(g, []int{-1000, -1, 0, 1000, 1001, 1 << 40}))(t) },
	}
	options = append(options, weighted(4, func(t *api.Task) { t.User = pick(g, hostileUsers) })...)
	options = append(options, weighted(4, func(t *api.Task) { set("cap_add", g.capabilities())(t) })...)
	options = append(options, weighted(2, func(t *api.Task) { set("pid_mode", pick(g, namespaceModes("pid")))(t) })...)
	return append(options, func(t *api.Task) { set("ipc_mode", pick(g, namespaceModes("ipc")))(t) })
}

// nestVolumes mounts one volume below another whose mounts are to appear on the machine, also through a link.
func (g *jobGenerator) nestVolumes(t *api.Task) {
	outside := pick(g, []string{"shared", "shared", "shared", closedVolume})
	below := pick(g, []string{"/shared/below", "/shared/../shared/below", "/alloc/data/root/shared/below", "/to-shared/below", "/to-root/shared/below", "/to-proc/shared/below", "/local/link/below"})
	t.VolumeMounts = []*api.VolumeMount{
		{Volume: new(outside), Destination: new("/shared"), PropagationMode: new("bidirectional")},
		{Volume: new("outer"), Destination: new(below), PropagationMode: new(pick(g, []string{"private", "host-to-task", "bidirectional"}))},
	}
	if g.oneIn(2) {
		slices.Reverse(t.VolumeMounts)
	}
	if g.oneIn(3) {
		t.SetConfig("cap_add", g.capabilities())
	}
}

// commonOptions are options of tasks of all drivers.
func (g *jobGenerator) commonOptions(group *api.TaskGroup) []func(*api.Task) {
	return []func(*api.Task){
		func(t *api.Task) { t.Templates = append(t.Templates, g.template()) },
		func(t *api.Task) {
			t.Artifacts = append(t.Artifacts, &api.TaskArtifact{GetterSource: new(pick(g, g.artifactSources())), RelativeDest: new(pick(g, append(g.hostilePaths(), "local/a")))})
		},
		func(t *api.Task) {
			if len(group.Volumes) > 0 {
				destinations := slices.Concat(g.hostilePaths(), destinationsThroughLinks, []string{"/proc", "/hostile", "/usr", "/alloc", "/"})
				t.VolumeMounts = append(t.VolumeMounts, &api.VolumeMount{Volume: new(pick(g, hostVolumes)), Destination: new(pick(g, destinations))})
			}
		},
		func(t *api.Task) { t.Meta = map[string]string{"lite_users": pick(g, hostileUsers), "user": "root"} },
		func(t *api.Task) {
			t.KillSignal = pick(g, []string{"SIGKILL", "SIGSTOP", "SIGTERM", "sigkill", "9", "0", "-1"})
		},
		func(t *api.Task) {
			t.Identities = []*api.WorkloadIdentity{{Name: "a", File: true, Filepath: pick(g, g.hostilePaths())}}
		},
		func(t *api.Task) {
			t.Env["PATH"], t.Env["LD_PRELOAD"], t.Env["GODEBUG"] = pick(g, g.hostilePaths()), pick(g, g.hostilePaths()), pick(g, g.hostileTexts())
		},
	}
}

func (g *jobGenerator) artifactSources() []string {
	return append(g.hostilePaths(), "file://"+g.world.canary, "file::"+g.world.canary, "git::file://"+g.world.canaryDir, g.world.downloads+"/file", g.world.downloads+"/file", g.world.downloads+"/redirect", g.world.downloads+"/endless-redirect")
}

func (g *jobGenerator) template() *api.Template {
	text := pick(g, []string{
		"plain", "plain", fmt.Sprintf(`{{ file %q }}`, g.world.canary), `{{ file "/etc/shadow" }}`, `{{ file "../alloc/data/root/etc/shadow" }}`, `{{ file "alloc/data/fifo" }}`, `{{ env "HOME" }}`,
		`{{ plugin "cat" "/etc/shadow" }}`, fmt.Sprintf(`{{ "x" | writeToFile %q "root" "root" "0666" }}`, g.world.targets.UnchangeableFile), `{{ range loop 1000000000 }}x{{ end }}`, `{{ executeTemplate "x" }}`,
	})
	t := &api.Template{DestPath: new(pick(g, append(g.hostilePaths(), "local/t", "local/t", "local/t", "secrets/t"))), ChangeMode: new("noop")}
	if g.oneIn(3) {
		t.SourcePath = new(pick(g, g.hostilePaths()))
	} else {
		t.EmbeddedTmpl = new(text)
	}
	if g.oneIn(2) {
		t.Perms = new(pick(g, []string{"0644", "4755", "6755", "06777", "1777", "07777", "-1", "999", "0x1ff"}))
	}
	if g.oneIn(3) {
		t.Uid, t.Gid = new(pick(g, []int{0, 1, 4001, -1, 65534, 1 << 33})), new(pick(g, []int{0, 1, 4001, -1, 65534}))
	}
	return t
}

// dockerOptions are options of the driver docker. Devices of the machine are only harmless ones, because each job can use them.
func (g *jobGenerator) dockerOptions(facts *taskFacts) []func(*api.Task) {
	mount := func() map[string]any {
		m := map[string]any{
			"type": pick(g, []string{"bind", "bind", "bind", "volume", "tmpfs", "BIND", "npipe", "cluster", "image", ""}), "source": pick(g, g.hostilePaths()),
			"target": pick(g, append([]string{"/mnt0", "/mnt0", "/mnt0", "/mnt1", "/mnt1", "/proc", "/local/../mnt1", ""}, destinationsThroughLinks...)),
		}
		if g.oneIn(3) {
			m["bind_options"] = []map[string]any{{"propagation": pick(g, []string{"rshared", "shared", "rslave", "private", "x"})}}
		}
		if g.oneIn(4) {
			m["volume_options"] = []map[string]any{{"driver_config": []map[string]any{{"name": "local", "options": []map[string]any{{"type": "none", "o": "bind", "device": pick(g, g.hostilePaths())}}}}}}
		}
		return m
	}
	swapped := "../alloc/data/" + attack.SwappedFile
	options := []func(*api.Task){
		func(t *api.Task) { set("load", pick(g, g.hostilePaths()))(t) },
		func(t *api.Task) { set("work_dir", pick(g, g.hostilePaths()))(t) },
		func(t *api.Task) { set("hostname", pick(g, g.hostileTexts()))(t) },
		func(t *api.Task) {
			set("labels", []map[string]any{{"com.hashicorp.nomad.alloc_id": pick(g, g.hostileTexts())}})(t)
		},
		func(t *api.Task) { set("group_add", []string{pick(g, hostileUsers)})(t) },
		func(t *api.Task) { set("init", true)(t) },
		func(t *api.Task) { set("volume_driver", pick(g, []string{"local", "", "x"}))(t) },
		func(t *api.Task) {
			facts.devices = true
			set("devices", []map[string]any{{"host_path": pick(g, []string{"/dev/null", "/dev/zero", "/dev/../dev/null", "/dev/full", g.world.canary, g.world.canaryDir, "/proc/self/fd"}), "container_path": pick(g, []string{"/dev/x", "", "x", "/proc/x"}), "cgroup_permissions": pick(g, []string{"", "rwm", "r", "x"})}})(t)
		},
		func(t *api.Task) { set("readonly_rootfs", true)(t) },
		func(t *api.Task) { set("storage_opt", []map[string]any{{"size": pick(g, g.hostileTexts())}})(t) },
		func(t *api.Task) { set("privileged", true)(t) },
		func(t *api.Task) { set("cap_add", g.capabilities())(t) },
		func(t *api.Task) { set("cap_drop", g.capabilities())(t) },
		func(t *api.Task) { set("userns_mode", pick(g, namespaceModes("user")))(t) },
		func(t *api.Task) {
			set("runtime", pick(g, []string{"runc", "nvidia", "io.containerd.runc.v2", "../runc", "/bin/sh", ""}))(t)
		},
		func(t *api.Task) {
			set("security_opt", []string{pick(g, []string{"seccomp=unconfined", "apparmor=unconfined", "label=disable", "no-new-privileges", "systempaths=unconfined", "unmask=ALL", "mask=", "proc-opts=x", "SECCOMP=unconfined"})})(t)
		},
		func(t *api.Task) {
			set("sysctl", []map[string]any{{pick(g, []string{"net.ipv4.ip_forward", "kernel.core_pattern", "kernel.shm_rmid_forced", "fs.mqueue.msg_max", "../kernel/core_pattern"}): pick(g, []string{"1", "|/bin/sh", ""})}})(t)
		},
		func(t *api.Task) {
			set("ulimit", []map[string]any{{"nofile": pick(g, []string{"1:1", "99999999999", "-1", "2048:4096"})}})(t)
		},
		func(t *api.Task) { set("cpuset_cpus", pick(g, g.hostileTexts()))(t) },
		func(t *api.Task) { set("pids_limit", pick(g, []int{-1, 1, 1 << 40}))(t) },
		func(t *api.Task) { set("oom_score_adj", pick(g, []int{-1000, 0, 1000, 1001}))(t) },
		func(t *api.Task) { set("shm_size", pick(g, []int{-1, 1, 1 << 50}))(t) },
		func(t *api.Task) { set("extra_hosts", []string{pick(g, g.hostileTexts()) + ":127.0.0.1"})(t) },
		func(t *api.Task) { set("dns_servers", []string{pick(g, g.hostileTexts())})(t) },
		func(t *api.Task) { set("isolation", pick(g, []string{"default", "hyperv", "process"}))(t) },
		func(t *api.Task) { t.User = pick(g, hostileUsers) },
	}
	options = append(options, weighted(8, func(t *api.Task) {
		set("security_opt", []string{pick(g, []string{"seccomp=", "seccomp=", " seccomp=", "seccomp:"}) + pick(g, []string{"../alloc/data/fifo", "../alloc/data/sparse", "../alloc/data/zero", "../alloc/data/root", "/dev/zero", "/proc/kcore", g.world.canary, swapped})})(t)
	})...)
	options = append(options, weighted(8, func(t *api.Task) {
		facts.unlogged = true
		set("logging", []map[string]any{g.logging()})(t)
	})...)
	options = append(options, weighted(3, func(t *api.Task) {
		set(pick(g, []string{"mount", "mounts"}), []map[string]any{mount(), mount()}[:1+g.IntN(2)])(t)
	})...)
	// A start that fails for another reason shows nothing about mounts, which are most of what a container can obtain.
	options = append(options, weighted(12, func(t *api.Task) {
		set("mount", []map[string]any{{"type": "bind", "source": swapped, "target": "/mnt0"}, {"type": "bind", "source": swapped, "target": "/mnt1"}}[:1+g.IntN(2)])(t)
	})...)
	options = append(options, weighted(3, func(t *api.Task) {
		set("volumes", []string{pick(g, g.hostilePaths()) + ":" + pick(g, append([]string{"/mnt0", "/mnt0", "/mnt0", "/mnt0"}, destinationsThroughLinks...)) + pick(g, []string{"", ":ro", ":rw,rshared", ":z", ":x"}), swapped + ":/mnt1"}[g.IntN(2):])(t)
	})...)
	options = append(options, weighted(4, func(t *api.Task) {
		facts.networkMode = pick(g, append(namespaceModes("net"), "bridge", "default"))
		set("network_mode", facts.networkMode)(t)
	})...)
	options = append(options, weighted(4, func(t *api.Task) {
		mode := pick(g, namespaceModes("cgroup"))
		facts.cgroupns = mode != "private" // which podman ignores on machines with cgroups v1
		set("cgroupns", mode)(t)
	})...)
	options = append(options, weighted(4, func(t *api.Task) { set("pid_mode", pick(g, namespaceModes("pid")))(t) })...)
	options = append(options, weighted(4, func(t *api.Task) { set("ipc_mode", pick(g, namespaceModes("ipc")))(t) })...)
	return append(options, weighted(4, func(t *api.Task) { set("uts_mode", pick(g, namespaceModes("uts")))(t) })...)
}

// logging returns a block that makes the engine send the output to a socket, or open a file.
func (g *jobGenerator) logging() map[string]any {
	logs := g.world.logs
	tcp := pick(g, g.world.targets.TCPAddresses)
	block := pick(g, []struct {
		logDriver string
		config    map[string]any
	}{
		{"syslog", map[string]any{"syslog-address": pick(g, []string{"unixgram://", "UNIXGRAM://", "unixgram:////", "unix://"}) + logs.datagramSocket, "tag": "sshd", "syslog-facility": "auth"}},
		{"syslog", map[string]any{"syslog-address": "tcp+tls://" + tcp, pick(g, []string{"syslog-tls-ca-cert", "syslog-tls-cert", "syslog-tls-key", "SYSLOG-TLS-CA-CERT"}): logs.certificate}},
		{"syslog", map[string]any{"syslog-address": pick(g, []string{"tcp://", "udp://"}) + tcp}},
		{"fluentd", map[string]any{"fluentd-address": pick(g, []string{"unix://", "UNIX://", "unix:////", "unix:", "tcp://@unix://"}) + logs.streamSocket}},
		{"fluentd", map[string]any{"fluentd-address": pick(g, []string{tcp, "tcp://" + tcp}), "fluentd-async": pick(g, []string{"true", "false"})}},
		{"splunk", map[string]any{"splunk-token": "x", "splunk-url": "https://" + tcp, "splunk-capath": pick(g, []string{logs.certificate, "/proc/1/root" + logs.certificate})}},
		{"splunk", map[string]any{"splunk-token": "x", "splunk-url": pick(g, []string{"http://" + tcp, "unix://" + logs.streamSocket, "file://" + logs.certificate})}},
		{"gelf", map[string]any{"gelf-address": pick(g, []string{"udp://" + tcp, "tcp://" + tcp, "unix://" + logs.streamSocket, "unixgram://" + logs.datagramSocket})}},
		{pick(g, []string{"k8s-file", "json-file"}), map[string]any{"path": filepath.Join(logs.dir, "output")}},
		{pick(g, []string{"gcplogs", "awslogs", "etwlogs", "logentries", "loki", "passthrough", "journald", "none", "local", "x"}), map[string]any{
			pick(g, []string{"max-size", "labels", "gcp-project", "awslogs-credentials-endpoint", "mode"}): pick(g, []string{"non-blocking", "http://" + tcp, "unix://" + g.world.engineSocket}),
		}},
	})
	return map[string]any{pick(g, []string{"type", "driver"}): block.logDriver, "config": []map[string]any{block.config}}
}
