package programs

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/moby/moby/client"
)

// printDockerContainersOfScript is the program "containers [-id] [-state] [-remove] [TASK]" of the scripts. It prints, or
// removes, the containers of the script's agent. With -networks, it prints the pause containers that hold the network namespaces of
// groups.
func printDockerContainersOfScript() {
	id := flag.Bool("id", false, "print the ids")
	state := flag.Bool("state", false, "print the states")
	remove := flag.Bool("remove", false, "remove the containers")
	networks := flag.Bool("networks", false, "print the ids of the containers that hold networks")
	flag.Parse()
	engine, err := client.New(client.FromEnv)
	switch {
	case err != nil:
	case *networks:
		err = printPauseContainerIDs(engine)
	default:
		err = printOrRemoveContainers(engine, flag.Arg(0), *id, *state, *remove)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printPauseContainerIDs prints the IDs of the pause containers of all agents. It cannot select those of one agent,
// because pause containers mount no directory of the agent.
func printPauseContainerIDs(engine *client.Client) error {
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

func printOrRemoveContainers(engine *client.Client, taskFilter string, printIDs, printStates, remove bool) error {
	list, err := engine.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		// A container belongs to the script if it mounts a directory below the script's working directory.
		ours := false
		for _, m := range c.Mounts {
			ours = ours || strings.HasPrefix(m.Source, os.Getenv("WORK")+"/")
		}
		switch {
		case !ours || taskFilter != "" && c.Labels["nomad-lite.task_name"] != taskFilter:
		case remove:
			if _, err := engine.ContainerRemove(context.Background(), c.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
				return err
			}
		case printIDs:
			fmt.Println(c.ID)
		case printStates:
			fmt.Println(c.State)
		default:
			fmt.Println(c.Names[0])
		}
	}
	return nil
}
