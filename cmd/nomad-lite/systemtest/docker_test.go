package systemtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/client"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
)

// TestDocker runs scripts with a Docker engine, whose address is in DOCKER_HOST and whose image
// is in IMAGE.
func TestDocker(t *testing.T) {
	engine := dockertest.Start(t)
	// The scripts of the first directory share the engine, and run at the same time. A script of the
	// second directory stops the engine.
	t.Run("shared", func(t *testing.T) { testscript.Run(t, dockerScriptParams(t, "testdata/docker", engine)) })
	t.Run("engine", func(t *testing.T) { testscript.Run(t, dockerScriptParams(t, "testdata/dockerengine", engine)) })
	if names := engine.ContainerNames(t); len(names) > 0 {
		t.Errorf("containers remain: %v", names)
	}
}

func dockerScriptParams(t *testing.T, dir string, engine *dockertest.Engine) testscript.Params {
	params := scriptParams(t, dir)
	params.Cmds["engine"] = func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("usage: engine start|stop|kill")
		}
		switch args[0] {
		case "start":
			ts.Check(engine.TryRun())
		case "stop":
			engine.Stop(t, syscall.SIGTERM)
		case "kill":
			engine.Stop(t, syscall.SIGKILL)
		default:
			ts.Fatalf("usage: engine start|stop|kill")
		}
	}
	setUp := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("DOCKER_HOST", engine.Host)
		env.Setenv("IMAGE", dockertest.Image)
		return setUp(env)
	}
	return params
}

// listContainers is the program "containers [-id] [-state] [TASK]" of the scripts. It prints the
// containers of the script's agent. With -networks, it prints the containers that hold the networks
// of groups.
func listContainers() {
	id := flag.Bool("id", false, "print the ids")
	state := flag.Bool("state", false, "print the states")
	networks := flag.Bool("networks", false, "print the ids of the containers that hold networks")
	flag.Parse()
	engine, err := client.New(client.FromEnv)
	switch {
	case err != nil:
	case *networks:
		err = printNetworks(engine)
	default:
		err = printContainers(engine, flag.Arg(0), *id, *state)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printNetworks prints the containers of all agents, because they have no directory of an agent.
func printNetworks(engine *client.Client) error {
	list, err := engine.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		if strings.HasPrefix(c.Names[0], "/nomad_init_") {
			fmt.Println(c.ID)
		}
	}
	return nil
}

func printContainers(engine *client.Client, task string, id, state bool) error {
	list, err := engine.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		// The directory of an agent is in the directory of its script.
		ours := false
		for _, m := range c.Mounts {
			ours = ours || strings.HasPrefix(m.Source, os.Getenv("WORK")+"/")
		}
		switch {
		case !ours || task != "" && c.Labels["nomad-lite.task_name"] != task:
		case id:
			fmt.Println(c.ID)
		case state:
			fmt.Println(c.State)
		default:
			fmt.Println(c.Names[0])
		}
	}
	return nil
}
