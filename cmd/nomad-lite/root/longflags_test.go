package root

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

func TestLongFlags(t *testing.T) {
	for name, line := range map[string][2]string{
		"a long flag gets a second dash":                 {"job run -detach f", "job run --detach f"},
		"with its value in the same word":                {"job run -var=a=b f", "job run --var=a=b f"},
		"the value of a flag is left alone":              {"job run -var -x f -detach", "job run --var -x f --detach"},
		"a flag before the command":                      {"-no-color job run f", "--no-color job run f"},
		"an unknown flag is long":                        {"job run -nope f", "job run --nope f"},
		"two dashes stay two":                            {"job run --detach f", "job run --detach f"},
		"a letter stays a letter":                        {"task exec -i A", "task exec -i A"},
		"several letters at once":                        {"task exec -it A", "task exec -it A"},
		"a letter with its value":                        {"task exec -e^ A", "task exec -e^ A"},
		"a number is not a flag":                         {"job run -1", "job run -1"},
		"standard input is not a flag":                   {"job run - -detach", "job run - --detach"},
		"the command of a task begins after the id":      {"task exec A ls -la", "task exec A ls -la"},
		"and after the flags, which have values":         {"task exec -task -la -i A ls -la", "task exec --task -la -i A ls -la"},
		"a value is not the first argument":              {"task exec -task A B -la", "task exec --task A B -la"},
		"what follows -- is for somebody else":           {"job run -- -detach", "job run -- -detach"},
		"a flag that is begun is completed as a long":    {"__complete job run -d", "__complete job run --d"},
		"but not the command of a task":                  {"__complete task exec A ls -l", "__complete task exec A ls -l"},
		"an empty argument is an argument of the task's": {"task exec  -la", "task exec  -la"},
	} {
		t.Run(name, func(t *testing.T) {
			root := &cobra.Command{Use: "root"}
			root.PersistentFlags().Bool("no-color", false, "")
			run := &cobra.Command{Use: "run"}
			run.Flags().Bool("detach", false, "")
			run.Flags().StringArray("var", nil, "")
			exec := cli.PassFlagsAfterFirstArg(&cobra.Command{Use: "exec"})
			exec.Flags().String("task", "", "")
			exec.Flags().BoolP("interactive", "i", true, "")
			exec.Flags().BoolP("tty", "t", true, "")
			exec.Flags().StringP("escape", "e", "~", "")
			root.AddCommand(cli.NewGroupCommand("job", "", run), cli.NewGroupCommand("task", "", exec))
			if got, want := toDoubleDashFlags(root, strings.Split(line[0], " ")), strings.Split(line[1], " "); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestFlagOfTwoWords(t *testing.T) {
	root := &cobra.Command{Use: "root"}
	run := &cobra.Command{Use: "run"}
	run.Flags().StringArray("pair", nil, "")
	if err := run.Flags().SetAnnotation("pair", cli.TwoWordsAnnotation, nil); err != nil {
		t.Fatal(err)
	}
	root.AddCommand(run)
	for name, line := range map[string][2][]string{
		"two words":          {{"run", "-pair", "a", "-b=c d", "f"}, {"run", "--pair", "a -b=c d", "f"}},
		"two words in one":   {{"run", "-pair", "a b=c", "f"}, {"run", "--pair", "a b=c", "f"}},
		"the second is lost": {{"run", "-pair", "a"}, {"run", "--pair", "a"}},
	} {
		if got := toDoubleDashFlags(root, line[0]); !slices.Equal(got, line[1]) {
			t.Errorf("%s: got %q, want %q", name, got, line[1])
		}
	}
}
