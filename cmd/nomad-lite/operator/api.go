package operator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
)

const apiHelp = `Send a request to the HTTP API of the agent, and print the answer as it is. The
command uses the address, the token and the certificates as all commands do, which
curl would need as arguments.

PATH may leave out /v1/. With a body, from -d or from a pipe, the method is PUT
unless -X names another.

Exit codes: 0, also for an answer with an error, as in Nomad; 1 when there is no
answer.`

const apiExamples = `  nomad-lite operator api jobs
  nomad-lite operator api '/v1/allocations?prefix=8ba85cef'
  nomad-lite operator api -filter 'Status == "running"' jobs
  nomad-lite operator api -X DELETE job/web
  nomad-lite operator api -dryrun jobs       print the command of curl instead`

type apiOptions struct {
	clientFlags   apiclient.Flags
	method        string
	bodyOrAtFile  string
	headers       []string
	filter        string
	printCurlOnly bool
	verbose       bool
}

func newAPICommand(s *cli.Streams) *cobra.Command {
	var o apiOptions
	cmd := &cobra.Command{
		Use:     "api [flags] PATH",
		Short:   "Send a request to the API",
		Long:    apiHelp,
		Example: apiExamples,
		Args:    cli.RequireArgCount(1, 1, "the path of a request, such as /v1/jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sendOrPrintAPIRequest(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVarP(&o.method, "method", "X", "", "`method`: GET, PUT, POST or DELETE")
	cmd.Flags().StringVarP(&o.bodyOrAtFile, "data", "d", "", "`body` to send; @FILE reads a file and @- standard input")
	cmd.Flags().StringArrayVarP(&o.headers, "header", "H", nil, "`header` to send, as 'Name: value'; may be given several times")
	cmd.Flags().StringVar(&o.filter, "filter", "", "`expression` that chooses from a list")
	cmd.Flags().BoolVar(&o.printCurlOnly, "dryrun", false, "print the command of curl that does the same, and do nothing")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show the request and the headers of the answer on standard error")
	return cmd
}

func sendOrPrintAPIRequest(ctx context.Context, o apiOptions, path string, s *cli.Streams) error {
	config := o.clientFlags.ClientConfig()
	socket, _ := strings.CutPrefix(config.Address, "unix://")
	c, err := o.clientFlags.NewClient(config) // NewClient replaces a unix:// address in config by an http:// address
	if err != nil {
		return err
	}
	body, err := o.readBody(s.In)
	if err != nil {
		return err
	}
	request, err := o.newRequest(ctx, config, path, body)
	if err != nil {
		return err
	}
	if o.printCurlOnly {
		if socket == config.Address {
			socket = ""
		}
		_, err := fmt.Fprintln(s.Out, curlCommand(request, socket, config, body))
		return err
	}
	if o.verbose {
		fmt.Fprintf(s.Err, "> %s %s\n", request.Method, request.URL)
	}
	if config.SecretID != "" {
		request.Header.Set("X-Nomad-Token", config.SecretID)
	}
	answer, err := c.Raw().Do(request)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("ask the agent", err)
	}
	defer answer.Body.Close()
	if o.verbose {
		fmt.Fprintf(s.Err, "< %s %s\n", answer.Proto, answer.Status)
		for _, pair := range output.SortedPairs(joinHeaderValues(answer.Header)) {
			fmt.Fprintf(s.Err, "< %s: %s\n", pair[0], pair[1])
		}
	}
	out := s.Out
	if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind == "application/json" {
		out = s.JSONOutput()
	}
	last := &lastByteWriter{w: out}
	if _, err := io.Copy(last, answer.Body); err != nil {
		return apiclient.WrapErrorWithAdvice("read the answer", err)
	}
	if last.lastByte != '\n' && last.lastByte != 0 && terminal.IsTerminal(s.Out) {
		fmt.Fprintln(s.Out)
	}
	if answer.StatusCode >= 400 {
		fmt.Fprintf(s.Err, "the agent answered %s\n", answer.Status)
	}
	return nil
}

// readBody returns the request body that -data describes. It returns nil for a request without a body.
func (o apiOptions) readBody(stdin io.Reader) ([]byte, error) {
	name, fromFile := strings.CutPrefix(o.bodyOrAtFile, "@")
	switch {
	case o.bodyOrAtFile == "" && isPipeOrRegularFile(stdin), fromFile && name == "-":
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		if len(text) == 0 && !fromFile {
			return nil, nil
		}
		return text, nil
	case fromFile:
		return os.ReadFile(name)
	case o.bodyOrAtFile == "":
		return nil, nil
	}
	return []byte(o.bodyOrAtFile), nil
}

// isPipeOrRegularFile reports whether r is a pipe or a regular file, which can contain a request body.
func isPipeOrRegularFile(r io.Reader) bool {
	file, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && (info.Mode()&os.ModeNamedPipe != 0 || info.Mode().IsRegular())
}

func (o apiOptions) newRequest(ctx context.Context, config *api.Config, path string, body []byte) (*http.Request, error) {
	target, err := url.Parse(path)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", path, err)
	}
	base, err := url.Parse(config.Address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", config.Address, err)
	}
	target.Scheme, target.Host, target.User = base.Scheme, base.Host, nil
	if !strings.HasPrefix(target.Path, "/") {
		if !strings.HasPrefix(target.Path, "v1/") {
			target.Path = "v1/" + target.Path
		}
		target.Path, target.RawPath = "/"+target.Path, ""
	}
	params := target.Query()
	for name, value := range map[string]string{"region": config.Region, "namespace": config.Namespace, "filter": o.filter} {
		if value != "" && !params.Has(name) {
			params.Set(name, value)
		}
	}
	target.RawQuery = params.Encode()
	method := strings.ToUpper(o.method)
	switch {
	case method != "":
	case body != nil:
		method = http.MethodPut
	default:
		method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request %s %s: %w", method, path, err)
	}
	if body != nil {
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	for _, header := range o.headers {
		name, value, found := strings.Cut(header, ":")
		if !found {
			return nil, fmt.Errorf("-H %q: want 'Name: value'", header)
		}
		request.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if auth := config.HttpAuth; auth != nil {
		request.SetBasicAuth(auth.Username, auth.Password)
	}
	return request, nil
}

// curlCommand returns the curl command line that sends the request. It contains the environment variable of the token
// in place of the token.
func curlCommand(request *http.Request, socketPath string, config *api.Config, body []byte) string {
	words := []string{"curl"}
	add := func(flag, value string) {
		if value != "" {
			words = append(words, flag, shellquote.Quote(value))
		}
	}
	add("--unix-socket", socketPath)
	if tls := config.TLSConfig; tls != nil {
		add("--cacert", tls.CACert)
		add("--capath", tls.CAPath)
		add("--cert", tls.ClientCert)
		add("--key", tls.ClientKey)
		if tls.Insecure {
			words = append(words, "--insecure")
		}
	}
	if request.Method != http.MethodGet {
		add("-X", request.Method)
	}
	for _, pair := range output.SortedPairs(joinHeaderValues(request.Header)) {
		if pair[0] != "Authorization" {
			add("-H", fmt.Sprintf("%s: %s", pair[0], pair[1]))
		}
	}
	if config.SecretID != "" {
		words = append(words, "-H", `"X-Nomad-Token: $NOMAD_TOKEN"`)
	}
	if body != nil {
		add("--data-binary", string(body))
	}
	return strings.Join(append(words, shellquote.Quote(request.URL.String())), " ")
}

func joinHeaderValues(h http.Header) map[string]string {
	flat := map[string]string{}
	for name, values := range h {
		flat[name] = strings.Join(values, ", ")
	}
	return flat
}

// lastByteWriter passes data on to w, and stores the last byte.
type lastByteWriter struct {
	w        io.Writer
	lastByte byte
}

func (l *lastByteWriter) Write(data []byte) (int, error) {
	if len(data) > 0 {
		l.lastByte = data[len(data)-1]
	}
	return l.w.Write(data)
}
