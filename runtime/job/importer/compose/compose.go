package compose

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// Options are the input of Convert.
type Options struct {
	Files    []string // at least one; later files take precedence
	JobName  string   // empty: the name of the project
	Profiles []string // nil: those of COMPOSE_PROFILES; "*" means all
	EnvFiles []string // instead of .env beside the first file
	Environ  []string // environment of the process, in the form of os.Environ

	// DockerNetwork is a network of Docker that the containers join. If it is empty, the containers share one network namespace.
	DockerNetwork string

	MachineMemoryMB int // memory of the machine that will run the job; 0 if it is unknown
}

// Convert returns the job for the services of compose files. It reads files, and may be called
// concurrently.
func Convert(o Options) (*importer.Result, error) {
	if len(o.Files) == 0 {
		return nil, errors.New("name a compose file")
	}
	o.Files = slices.Clone(o.Files)
	for i := range o.Files {
		o.Files[i] = absolute("", o.Files[i])
	}
	warnings := &importer.Warnings{}
	l := &loader{options: o, environ: map[string]string{}, unset: map[string]bool{}, warnings: warnings}
	for _, variable := range o.Environ {
		name, v, _ := strings.Cut(variable, "=")
		l.environ[name] = v
	}
	project, err := l.loadProject()
	if err != nil {
		return nil, err
	}
	if override := siblingOverride(o.Files[0]); override != "" && !slices.Contains(o.Files, override) {
		warnings.Add(importer.Position{File: l.displayName(override)}, "docker compose reads this file too, and it was not named: name it as the second file if it is for this machine")
	}
	c := &converter{
		loader: l, Warnings: warnings, project: project,
		name: projectName(cmp.Or(l.options.JobName, fieldText(project, "name"), filepath.Base(filepath.Dir(o.Files[0])))),
	}
	return c.convert()
}

// projectName returns a name in the form in which compose writes names of projects.
func projectName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return -1
	}, strings.ToLower(name))
	return cmp.Or(strings.TrimLeft(name, "-_"), "compose")
}

// converter converts one project.
type converter struct {
	*importer.Warnings
	loader   *loader
	project  *value
	name     string
	services []*service
	byName   map[string]*service
	network  networkMode
	stages   map[string]importer.Stage
	batch    bool

	usedPortLabels map[string]bool
	needs          operatorNeeds
	reservedMB     int      // memory that the tasks reserve
	unlimited      []string // services without a limit of memory; a service can be there twice
	unrestarted    []string // services without a restart policy; a service can be there twice
}

// networkMode is how containers reach each other.
type networkMode int

const (
	engineNetwork   networkMode = iota // a single container in the default network of the engine
	sharedNamespace                    // all containers share a network namespace
	dockerNetwork                      // each container joins a network of Docker
)

// operatorNeeds is what the configuration of the agent must allow.
type operatorNeeds struct {
	volumes, privileged bool
	caps                []string
	hostNetworks        map[string]string // names and addresses
	maxKillTimeout      time.Duration     // 0: the default of the agent
}

// service is a service that is converted.
type service struct {
	*value
	name     string
	tasks    []string // the names of its tasks: several for replicas in one group
	count    int      // replicas, in a group of their own
	runsOnce bool
	after    []importer.Dependency // names of services
	ports    []port
	aliases  []string

	ownNetworkMode string // value of network_mode, for a service outside of the network of the group
	hasHealthcheck bool
}

func (c *converter) convert() (*importer.Result, error) {
	steps := []func() error{c.selectServices, c.readDependencies, c.readPorts, c.chooseNetwork, c.chooseStages}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	c.warnOfTopLevel()
	c.warnOfDeclaredKeys()
	file := importer.NewFile()
	top := file.Body()
	c.writeServiceNames(top)
	job := top.Block("job", c.name)
	if c.batch {
		job.Set("type", "batch")
	}
	if err := c.writeGroups(job); err != nil {
		return nil, err
	}
	c.warnOfDefaults()
	return &importer.Result{Job: file.Bytes(), Warnings: c.List(), AgentConfig: c.needs.config()}, nil
}

// selectServices chooses the services of the active profiles.
func (c *converter) selectServices() error {
	all := c.project.get("services")
	if all == nil || len(all.keys) == 0 {
		return importer.Errorf(c.project.at, "the file has no services")
	}
	c.byName = map[string]*service{}
	profiles := c.loader.options.Profiles
	for _, name := range all.keys {
		v := all.fields[name]
		if !isServiceName(name) {
			return importer.Errorf(v.at, "%q is no name of a service", name)
		}
		wanted, err := v.get("profiles").asTexts()
		if err != nil {
			return err
		}
		isActive := len(wanted) == 0 || slices.Contains(profiles, "*") || slices.ContainsFunc(wanted, func(p string) bool { return slices.Contains(profiles, p) })
		if !isActive {
			c.Add(v.at, "the service %s is left out: it has the profile %s (-profile %s)", name, strings.Join(wanted, ", "), wanted[0])
			continue
		}
		s := &service{value: v, name: name, tasks: []string{name}, count: 1}
		c.services = append(c.services, s)
		c.byName[name] = s
	}
	if len(c.services) == 0 {
		return importer.Errorf(all.at, "no service is active: each has a profile (-profile NAME)")
	}
	return nil
}

func isServiceName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	})
}

var conditions = map[string]importer.Condition{
	"service_started":                importer.Started,
	"service_healthy":                importer.Healthy,
	"service_completed_successfully": importer.Succeeded,
}

// readDependencies sets what each service waits for, and which services run once.
func (c *converter) readDependencies() error {
	for _, s := range c.services {
		s.hasHealthcheck = hasHealthcheck(s.get("healthcheck"))
	}
	awaited := map[string]bool{} // services for whose success others wait
	for _, s := range c.services {
		if err := c.readDependenciesOf(s); err != nil {
			return err
		}
		for _, dependency := range s.after {
			if dependency.Condition == importer.Succeeded {
				awaited[dependency.Name] = true
			}
		}
	}
	for _, s := range c.services {
		policy := restartPolicyOf(s.value)
		mode := fieldText(s.get("deploy"), "mode")
		hasUsers := slices.ContainsFunc(c.services, func(other *service) bool {
			return slices.ContainsFunc(other.after, func(d importer.Dependency) bool {
				return d.Name == s.name && d.Condition != importer.Succeeded
			})
		})
		s.runsOnce = awaited[s.name] || strings.HasSuffix(mode, "-job") ||
			policy == "no" && !hasUsers && !s.hasHealthcheck && s.get("ports") == nil
	}
	return nil
}

func (c *converter) readDependenciesOf(s *service) error {
	dependsOn := s.get("depends_on")
	if dependsOn != nil {
		for _, name := range dependsOn.keys {
			field := dependsOn.fields[name]
			condition, known := conditions[cmp.Or(fieldText(field, "condition"), "service_started")]
			if !known {
				return importer.Errorf(field.at, "the condition %q of depends_on is unknown", fieldText(field, "condition"))
			}
			other := c.byName[name]
			if other == nil {
				if c.project.get("services").fields[name] == nil && fieldText(field, "required") != "false" {
					return importer.Errorf(field.at, "the service %s depends on %q, which does not exist", s.name, name)
				}
				c.Add(field.at, "the service %s does not wait for %s, which is left out", s.name, name)
				continue
			}
			if condition == importer.Healthy && !other.hasHealthcheck {
				c.Add(field.at, "the service %s has no healthcheck here, and that of its image is not known: %s waits until it is started", name, s.name)
				condition = importer.Started
			}
			if restarts, err := field.get("restart").asBool(); err != nil {
				return err
			} else if restarts {
				c.Add(field.at, "restart = true of depends_on has no counterpart for one task: lite_restart_group of the group restarts tasks together")
			}
			s.after = append(s.after, importer.Dependency{Name: name, Condition: condition})
		}
	}
	links, err := s.get("links").asTexts()
	if err != nil {
		return err
	}
	for _, link := range links {
		name, alias, hasAlias := strings.Cut(link, ":")
		other := c.byName[name]
		if other == nil {
			return importer.Errorf(s.get("links").at, "the service %s has a link to %q, which does not exist", s.name, name)
		}
		if hasAlias {
			other.addAlias(alias)
		}
		if !slices.ContainsFunc(s.after, func(d importer.Dependency) bool { return d.Name == name }) {
			s.after = append(s.after, importer.Dependency{Name: name, Condition: importer.Started})
		}
	}
	return nil
}

func (s *service) addAlias(name string) {
	if name != "" && name != s.name && !slices.Contains(s.aliases, name) {
		s.aliases = append(s.aliases, name)
	}
}

// chooseStages sets the stage of each service, and splits replicas.
func (c *converter) chooseStages() error {
	var programs []importer.Program
	for _, s := range c.services {
		replicas, err := c.replicasOf(s)
		if err != nil {
			return err
		}
		programs = append(programs, importer.Program{Name: s.name, RunsOnce: s.runsOnce, After: s.after})
		switch {
		case replicas <= 1:
		case c.network == dockerNetwork:
			s.count = replicas
		case c.network == sharedNamespace && len(s.ports) > 0:
			c.Add(s.at, "the %d replicas of %s would listen on the same ports of one network namespace: the job has one of them; with -docker-network, each has an address of its own", replicas, s.name)
		case c.network == engineNetwork:
			s.count = replicas
		default:
			s.tasks = nil
			for i := range replicas {
				s.tasks = append(s.tasks, fmt.Sprintf("%s-%d", s.name, i+1))
			}
		}
	}
	var err error
	c.stages, c.batch, err = importer.Stages(programs)
	return errAt(c.project.get("services").at, err)
}

func (c *converter) replicasOf(s *service) (int, error) {
	replicas := 1
	deploy := s.get("deploy")
	for _, v := range []*value{s.get("scale"), deploy.get("replicas")} {
		if v == nil {
			continue
		}
		n, err := v.asInt()
		if err != nil {
			return 0, err
		}
		replicas = n
	}
	const most = 100
	if replicas < 0 || replicas > most {
		return 0, importer.Errorf(s.at, "the service %s has %d replicas; 0 to %d can be converted", s.name, replicas, most)
	}
	if replicas == 0 {
		c.Add(s.at, "the service %s has 0 replicas, and the job one", s.name)
	}
	return replicas, nil
}

// writeGroups writes one group for the services, and one for each service with several replicas.
func (c *converter) writeGroups(job *importer.Body) error {
	together := slices.DeleteFunc(slices.Clone(c.services), func(s *service) bool { return s.count > 1 })
	c.warnOfReplacement(together)
	if len(together) > 0 {
		if err := c.writeGroup(job, c.name, 1, together); err != nil {
			return err
		}
	}
	for _, s := range c.services {
		if s.count > 1 {
			if err := c.writeGroup(job, s.name, s.count, []*service{s}); err != nil {
				return err
			}
		}
	}
	return nil
}

// warnOfReplacement warns that a change of one service replaces the others of its group.
func (c *converter) warnOfReplacement(group []*service) {
	var names []string
	for _, s := range group {
		if !s.runsOnce {
			names = append(names, s.name)
		}
	}
	if len(names) < 2 {
		return
	}
	remedy := "to replace a service alone, move it to a group of its own"
	if c.network == sharedNamespace {
		remedy = "to replace a service alone, import with -docker-network NAME and move it to a group of its own"
	}
	c.Add(c.project.get("services").at, "the services %s are tasks of one group: a change of one, such as a new image, stops and replaces all of them; %s (docs/how-to/import-compose.md)", strings.Join(names, ", "), remedy)
}

func (c *converter) writeGroup(job *importer.Body, name string, count int, services []*service) error {
	group := job.Block("group", name)
	if count > 1 {
		group.Set("count", count)
	}
	c.writeNetwork(group, services)
	for _, s := range services {
		for _, task := range s.tasks {
			if err := c.writeTask(group.Block("task", task), s, services); err != nil {
				return err
			}
		}
	}
	return nil
}

// dependenciesIn returns what a service waits for, as tasks of its group.
func (c *converter) dependenciesIn(s *service, group []*service) []importer.Dependency {
	var after []importer.Dependency
	for _, dependency := range s.after {
		other := c.byName[dependency.Name]
		if !slices.Contains(group, other) {
			c.Add(s.at, "the service %s does not wait for %s, whose tasks are in another group: tasks of groups do not wait for each other", s.name, other.name)
			continue
		}
		for _, task := range other.tasks {
			after = append(after, importer.Dependency{Name: task, Condition: dependency.Condition})
		}
	}
	return after
}

// warnOfTopLevel warns of parts of the file outside of services that have no counterpart.
func (c *converter) warnOfTopLevel() {
	for _, key := range c.project.keys {
		v := c.project.fields[key]
		switch {
		case slices.Contains([]string{"services", "name", "version", "networks", "volumes", "secrets", "configs"}, key), strings.HasPrefix(key, "x-"):
		default:
			c.Add(v.at, "%s has no counterpart", key)
		}
	}
	networks := c.project.get("networks")
	if networks == nil {
		return
	}
	used := map[string]bool{}
	for _, s := range c.services {
		if own := s.get("networks"); own != nil {
			for _, name := range own.keys {
				used[name] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(used))
	if len(names) > 1 {
		c.Add(networks.at, "the networks %s become one: each service can reach all others", strings.Join(names, ", "))
	}
	for _, name := range networks.keys {
		network := networks.fields[name]
		if !used[name] && name != "default" || network.kind != mapping {
			continue
		}
		for _, key := range network.keys {
			switch v := network.fields[key]; {
			case key == "driver" && v.text == "bridge", key == "name" && network.get("external") != nil, strings.HasPrefix(key, "x-"), v.text == "false":
			case key == "external" && c.network != dockerNetwork:
				c.Add(v.at, "the containers do not join the network %s: with -docker-network %s they do", name, cmp.Or(fieldText(network, "name"), name))
			case key == "external":
			default:
				c.Add(v.at, "%s of the network %s has no counterpart", key, name)
			}
		}
	}
}

// config returns the blocks that the configuration of the agent must have.
func (n *operatorNeeds) config() []byte {
	file := importer.NewFile()
	top := file.Body()
	if n.maxKillTimeout > 0 || len(n.hostNetworks) > 0 {
		client := top.Block("client")
		if n.maxKillTimeout > 0 {
			client.Set("max_kill_timeout", n.maxKillTimeout)
		}
		for _, name := range slices.Sorted(maps.Keys(n.hostNetworks)) {
			client.Block("host_network", name).Set("cidr", n.hostNetworks[name])
		}
	}
	if n.volumes || n.privileged || len(n.caps) > 0 {
		config := top.Block("plugin", "docker").Block("config")
		config.SetNonZero("allow_privileged", n.privileged)
		if len(n.caps) > 0 {
			caps := append(slices.Clone(n.caps), defaultCaps...)
			slices.Sort(caps)
			config.Set("allow_caps", slices.Compact(caps))
		}
		if n.volumes {
			config.Block("volumes").Set("enabled", true)
		}
	}
	return file.Bytes()
}

// warnOfDefaults warns of what must exist before the job runs, and of the values that the job has because the file has none.
func (c *converter) warnOfDefaults() {
	if c.network == dockerNetwork {
		c.Add(importer.Position{}, "the network must exist before the job runs: docker network create %s", c.loader.options.DockerNetwork)
	}
	if len(c.unlimited) > 0 {
		c.Add(importer.Position{}, "no limit of memory in the file for %s: the job reserves %d MB and limits to %d MB for each (memory, memory_hard_limit)", strings.Join(slices.Compact(c.unlimited), ", "), defaultMemoryMB, defaultMemoryLimitMB)
	}
	if machine := c.loader.options.MachineMemoryMB; machine > 0 && c.reservedMB > machine {
		c.Add(importer.Position{}, "the job reserves %d MB of memory, and this machine has %d: lower memory of the tasks that need less", c.reservedMB, machine)
	}
	if len(c.unrestarted) > 0 {
		c.Add(importer.Position{}, "no restart policy in the file for %s: compose leaves them stopped when they end, the job restarts them (restart)", strings.Join(slices.Compact(c.unrestarted), ", "))
	}
}
