package root

import (
	"os"
	"slices"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/template/evaluators"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agent"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	_ "github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/helperprocess" // makes the process the keeper or the log collector
	_ "github.com/nomad-lite/nomad-lite/internal/confine/undumpable"           // no process of this program that root starts can be traced
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec/confined"
)

// findHelperProcessMain returns the function of the helper process that these arguments start, or nil. It is called
// before any command is constructed, because the commands and their flags would be a third of the memory of an idle
// helper process.
func findHelperProcessMain(args []string, s *cli.Streams) func() error {
	switch {
	case slices.Equal(args, []string{agent.JobParserCommand}):
		return exitCodeToError(func() int { return confined.ServeParseRequest(s.In, s.Out, s.Err) })
	case slices.Equal(args, []string{builtins.ArtifactDownloadCommand}):
		return exitCodeToError(func() int { return artifact.DownloadProcessMain(s.In, s.Out, s.Err) })
	case slices.Equal(args, []string{builtins.TemplateEvaluatorCommand}):
		return exitCodeToError(func() int { return evaluators.EvaluatorMain(os.Stdin, s.Err) })
	case slices.Equal(args, []string{builtins.TemplateLauncherCommand}):
		return exitCodeToError(func() int {
			return evaluators.LauncherMain(os.Stdin, []string{builtins.TemplateEvaluatorCommand}, s.Err)
		})
	case len(args) >= 3 && args[0] == "plugin" && args[1] == "serve":
		return func() error { return builtins.ServePlugin(args[2], args[3:]...) }
	}
	return nil
}

// exitCodeToError converts a function that returns an exit code, and has printed the reason of a code other than 0,
// into a function that returns an error.
func exitCodeToError(run func() int) func() error {
	return func() error {
		if code := run(); code != 0 {
			return &cli.ExitError{Code: code}
		}
		return nil
	}
}
