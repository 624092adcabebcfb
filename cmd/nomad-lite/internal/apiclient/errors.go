package apiclient

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentdial"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
)

// WrapErrorWithAdvice adds to an error of the API client the operation that failed, and advice for the user. It
// replaces the client's text about an HTTP status by the body of the response.
func WrapErrorWithAdvice(operation string, err error) error {
	if unverified := new(agentdial.UnverifiedError); errors.As(err, &unverified) {
		return fmt.Errorf("%s: %w\n%s", operation, err, unverifiedAdvice(unverified))
	}
	if reason := new(url.Error); errors.As(err, &reason) {
		return fmt.Errorf("%s: %w\n%s", operation, err, unreachableAdvice(err))
	}
	answer := new(api.UnexpectedResponseError)
	if !errors.As(err, answer) || answer.Body() == "" {
		if answer.StatusCode() == 404 {
			return fmt.Errorf("%s: %w\nThe agent does not know this request: is something else listening at its address, or is it an older one?", operation, err)
		}
		return fmt.Errorf("%s: %w", operation, err)
	}
	text := formatErrorList(strings.TrimSpace(answer.Body()))
	switch {
	case strings.HasPrefix(text, permissionDeniedTip):
		text += "\nShow what the token may do: nomad-lite acl policy self"
	case strings.Contains(text, "Permission denied"):
		text += "\nShow the token of the agent: export NOMAD_TOKEN=$(cat <data dir>/token); with access control, a token that has the right"
	case strings.Contains(text, "disabled by the scheduler configuration"):
		text += "\nEnable it: nomad-lite operator scheduler set-config -reject-job-registration=false"
	case strings.Contains(text, " is in nonexistent namespace "):
		text += "\nMake the namespace: nomad-lite namespace apply NAME"
	case strings.Contains(text, "HTTP request to an HTTPS server"):
		text += "\nThe agent wants TLS: write https:// in -address or NOMAD_ADDR"
	}
	if strings.HasPrefix(text, "\n") { // formatErrorList has returned a list, which starts on a line of its own
		return fmt.Errorf("%s:%s", operation, text)
	}
	return fmt.Errorf("%s: %s", operation, text)
}

// formatErrorList returns a nested list of errors of Nomad's API with one sentence per error: its places from the outside to the
// inside, and then the cause. It returns a text without such a list unchanged.
func formatErrorList(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
	sentences, rest, ok := sentencesOfErrorList("", lines)
	switch {
	case !errorListHeadPattern().MatchString(text):
		return text
	case !ok || len(rest) > 0: // an error has several lines
		return StripErrorListHeads(text)
	case len(sentences) == 1:
		return sentences[0]
	}
	return "\n  * " + strings.Join(sentences, "\n  * ")
}

// nestedListPattern matches the first line of a list, with its place and its length.
var nestedListPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(.*?):? *(\d+) errors? occurred:$`) })

// sentencesOfErrorList returns the errors of the list that starts with the first of the lines, or the line if it is an error itself,
// after a place. It returns the lines after the list.
func sentencesOfErrorList(place string, lines []string) (sentences, rest []string, ok bool) {
	if len(lines) == 0 {
		return nil, nil, false
	}
	head := nestedListPattern().FindStringSubmatch(lines[0])
	if head == nil {
		return []string{place + lines[0]}, lines[1:], true
	}
	if inner := strings.TrimSuffix(head[1], " validation failed"); inner != "" {
		place += inner + ": "
	}
	lines = slices.Clone(lines[1:])
	count, _ := strconv.Atoi(head[2]) // the pattern matches digits
	for range count {
		if len(lines) == 0 || !strings.HasPrefix(lines[0], "\t* ") {
			return nil, nil, false
		}
		lines[0] = strings.TrimPrefix(lines[0], "\t* ")
		var nested []string
		if nested, lines, ok = sentencesOfErrorList(place, lines); !ok {
			return nil, nil, false
		}
		sentences = append(sentences, nested...)
	}
	return sentences, lines, true
}

// errorListHeadPattern matches the line "N errors occurred:" above each list in a nested list of errors of Nomad's API.
var errorListHeadPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\d+ errors? occurred:`) })

// StripErrorListHeads removes the lines "N errors occurred:" and the empty lines from a nested list of errors. It
// returns a text without such a list unchanged.
func StripErrorListHeads(text string) string {
	if !errorListHeadPattern().MatchString(text) {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(errorListHeadPattern().ReplaceAllString(text, "")) {
		if line = strings.TrimRight(line, " \t\n"); line != "" {
			b.WriteString("\n" + strings.ReplaceAll(line, "\t", "  "))
		}
	}
	if strings.HasPrefix(b.String(), "\n  *") {
		return b.String()
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// IsNotFound reports whether err is the response of an agent that the object or the endpoint does not exist.
func IsNotFound(err error) bool {
	answer := new(api.UnexpectedResponseError)
	return errors.As(err, answer) && answer.StatusCode() == http.StatusNotFound
}

// unreachableAdvice returns advice for the error err of a request to which no agent has responded.
func unreachableAdvice(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "certificate required"), strings.Contains(text, "bad certificate"):
		return "The agent wants a certificate: name one with -client-cert and -client-key"
	case strings.Contains(text, "unknown authority"):
		return "Name the authority that signed the certificate of the agent with -ca-cert"
	case strings.Contains(text, "x509"):
		return "Name what the certificate of the agent was made for with -tls-server-name"
	case strings.Contains(text, "unsupported protocol scheme"):
		return "Write the address with its scheme in -address or NOMAD_ADDR, such as http://127.0.0.1:4646"
	case strings.Contains(text, "HTTP response to HTTPS client"):
		return "The agent does not speak TLS: write http:// in -address or NOMAD_ADDR"
	}
	if socket := agentsocket.DeniedSocketPath(err); socket != "" {
		return socketPermissionAdvice(socket)
	}
	if os.Getenv("NOMAD_ADDR") == "" && strings.Contains(text, api.DefaultConfig().Address) {
		if socket := deniedSocket(); socket != "" {
			return socketPermissionAdvice(socket)
		}
	}
	return "Is an agent running? Start one with 'nomad-lite agent', or name its address with -address or NOMAD_ADDR"
}

// unverifiedAdvice returns advice for a listener that did not prove that it is the agent.
func unverifiedAdvice(e *agentdial.UnverifiedError) string {
	switch {
	case e.AddressIsGiven && e.OwnerIsTrusted:
		return "The listener replies to no HTTP request: is -address or NOMAD_ADDR the address of an agent?"
	case e.AddressIsGiven:
		return "Start the agent with 'nomad-lite agent', or give any listener at this address the token and the request with -allow-unverified-agent"
	}
	if socket := deniedSocket(); socket != "" && !e.HasToken {
		return socketPermissionAdvice(socket)
	}
	if e.OwnerIsTrusted {
		return fmt.Sprintf("If it is an agent, put its token into NOMAD_TOKEN; to send the request to it without a proof, name it: -address http://%s or NOMAD_ADDR", e.Listener)
	}
	return "Start an agent with 'nomad-lite agent', name another address with -address or NOMAD_ADDR, or give any listener at this address the token and the request with -allow-unverified-agent"
}

// deniedSocket returns a socket of an agent that this user has no permission to open, or "" if there is none. Without a socket
// that this user can connect to, clients use the default address, and the socket explains a failure better.
func deniedSocket() string {
	return agentsocket.FirstDeniedSocket(agentsocket.SocketPathsInTrustedDirs())
}

// socketPermissionAdvice returns advice for a socket that this user has no permission to open.
func socketPermissionAdvice(socket string) string {
	advice := fmt.Sprintf("An agent may be running: permission denied for its socket %s. Run the command as the user of the agent (root with sudo)", socket)
	if slices.Contains(agentsocket.DevSocketPaths(), socket) {
		return advice // an agent in development mode that is root does not listen on TCP by default
	}
	return advice + ", or use its HTTP address: -address http://127.0.0.1:4646 and its token in NOMAD_TOKEN"
}
