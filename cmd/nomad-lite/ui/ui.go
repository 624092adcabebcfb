package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const uiHelp = `Open the web UI of the agent in a browser, or the page about a job, an allocation or a
node. The browser is the command in BROWSER, or xdg-open on a desktop. Without a browser, the
address is printed.

The page of an agent that listens only on its unix socket is served by this command on a
loopback port, which only the browser that it opens can use, until Ctrl-C or until the page has sent
no request for ten minutes, for example because it is closed or hidden.

The browser gets a one-time secret from a file that only this user can read. When the page or
the terminal shows that another program has used the secret, a program of this user is hostile:
stop it, then remove the file token of the agent's data directory, and restart the agent, which
makes a new token.

Exit codes: 0, or 1 when nothing or several things have this id.`

type options struct {
	clientFlags  apiclient.Flags
	printURLOnly bool
	authenticate bool
}

// NewCommand returns the command "ui".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:     "ui [flags] [ID]",
		Short:   "Open the web UI",
		Long:    uiHelp,
		Example: "  nomad-lite ui -authenticate\n  nomad-lite ui web",
		Args:    cli.RequireArgCount(0, 1, "an id, or nothing"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			return openUI(cmd.Context(), o, id, s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.printURLOnly, "show-url", false, "print the address, and open no browser")
	cmd.Flags().BoolVar(&o.authenticate, "authenticate", false, "log the browser in, with a secret that is valid once and for a minute")
	return cmd
}

func openUI(ctx context.Context, o options, idPrefix string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	path := "/ui/"
	if idPrefix != "" {
		page, err := findUIPath(ctx, c, o.clientFlags.ClientConfig().Namespace, idPrefix)
		if err != nil {
			return err
		}
		path += page
	}
	return openAgentPage(ctx, o, c, path, s)
}

// openAgentPage opens a page of the agent in the browser, or prints its address. path starts with "/ui/".
func openAgentPage(ctx context.Context, o options, c *api.Client, path string, s *cli.Streams) error {
	base, err := findUIAddress(ctx, o, c)
	if err != nil {
		return err
	}
	if base == "" {
		return servePageOfUnixSocketAgent(ctx, o, path, s)
	}
	if o.authenticate {
		secret, err := createLoginSecret(ctx, c)
		if err != nil {
			return err
		}
		if secret != "" {
			return openWithSecretAndWait(ctx, o, base+path, secret, s)
		}
	}
	return openOrPrintAddress(o, base+path, s)
}

// openOrPrintAddress opens an address without a secret, or prints it.
func openOrPrintAddress(o options, address string, s *cli.Streams) error {
	if o.printURLOnly || !openBrowserOrWarn(address, s) {
		return printAddress(o, address, s)
	}
	_, err := fmt.Fprintf(s.Out, "Opening URL %q\n", address)
	return err
}

// openBrowserOrWarn opens an address in the browser, and reports whether that was successful. It prints a warning if
// the browser has failed.
func openBrowserOrWarn(address string, s *cli.Streams) (opened bool) {
	err := openBrowser(address)
	if err != nil && !errors.Is(err, errNoBrowser) {
		fmt.Fprintln(s.Err, "warning:", err)
	}
	return err == nil
}

func printAddress(o options, address string, s *cli.Streams) error {
	if o.printURLOnly {
		address = "URL for web UI: " + address
	}
	_, err := fmt.Fprintln(s.Out, address)
	return err
}

// loginFragment precedes the one-time secret in the fragment of an address. The page removes the secret from the
// address.
const loginFragment = "#login="

// openWithSecretAndWait opens an address with a one-time secret in its fragment. It blocks until the browser has
// requested the address, or until the secret expires.
func openWithSecretAndWait(ctx context.Context, o options, address, secret string, s *cli.Streams) error {
	g, err := listenBrowserGateway()
	if err != nil {
		return err
	}
	g.targetAddress = address + loginFragment + secret
	ctx, cancel := context.WithTimeout(ctx, loginLifetime)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		err := g.serve(ctx, http.NotFoundHandler())
		cancel() // if the server has failed, the browser cannot open the page
		served <- err
	}()
	err = openGatewayTargetAndWait(ctx, o, g, address, s)
	cancel()
	return errors.Join(<-served, err)
}

// errNotOpened is the error for a browser that was started and has not requested the page.
var errNotOpened = errors.New("the browser did not open the page: nomad-lite ui -show-url prints its address, with -authenticate if the agent requires a token")

// openGatewayTargetAndWait starts the browser with a file that forwards it to the gateway, and blocks until the browser
// has requested the secret path or ctx ends. Without a browser it prints the target. displayedAddress is the printed
// address, which contains no secret.
func openGatewayTargetAndWait(ctx context.Context, o options, g *browserGateway, displayedAddress string, s *cli.Streams) error {
	if o.printURLOnly {
		return printAddress(o, g.targetAddress, s)
	}
	file, err := writeForwardingFile(g.secretURL())
	if err != nil {
		return err
	}
	if !openBrowserOrWarn(file.fileURL(), s) {
		return errors.Join(file.remove(), printAddress(o, g.targetAddress, s))
	}
	fmt.Fprintf(s.Out, "Opening URL %q\n", displayedAddress)
	select {
	case <-g.secretPathUsed:
		return file.remove()
	case <-ctx.Done():
		return errors.Join(file.remove(), errNotOpened)
	case <-time.After(slowBrowserTime):
	}
	if terminal.IsTerminal(s.Err) { // standard error can be a file that tasks can read
		fmt.Fprintf(s.Err, "==> the browser has not opened the page; this address opens it, once:\n    %s\n", g.targetAddress)
	}
	select {
	case <-g.secretPathUsed:
		return file.remove()
	case <-ctx.Done():
		return errors.Join(file.remove(), errNotOpened)
	}
}

// slowBrowserTime is how long openGatewayTargetAndWait waits for the browser before it prints the address. A browser
// that cannot read the file reports no error to the command.
const slowBrowserTime = 5 * time.Second

// servePageOfUnixSocketAgent serves the page of an agent that listens only on its unix socket, until ctx ends, the
// session is idle, or the one-time secret is used twice.
func servePageOfUnixSocketAgent(ctx context.Context, o options, path string, s *cli.Streams) error {
	g, err := listenBrowserGateway()
	if err != nil {
		return err
	}
	ctx, stop := cli.ContextUntilInterrupted(ctx)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	socket := strings.TrimPrefix(o.clientFlags.ClientConfig().Address, "unix://")
	page := newBrowserSession(socket, sessionIdleTime, func() { cancel(errIdle) }, func() {
		fmt.Fprintln(s.Err, "warning: the one-time secret of the page was used twice: if you have not opened the address twice, press Ctrl-C, which ends the session")
	})
	g.targetAddress = g.baseURL() + path + loginFragment + page.loginSecret
	served := make(chan error, 1)
	go func() {
		err := g.serve(ctx, page)
		cancel(nil)
		served <- err
	}()
	fmt.Fprintln(s.Err, "==> the agent listens only on its socket: this command serves its page until Ctrl-C")
	var opening sync.WaitGroup
	var openErr error
	opening.Go(func() {
		openCtx, cancelOpening := context.WithTimeout(ctx, loginLifetime)
		defer cancelOpening()
		openErr = openGatewayTargetAndWait(openCtx, o, g, g.baseURL()+path, s)
		if errors.Is(openErr, errNotOpened) {
			openErr = nil // the user can have opened the printed address
		} else if openErr != nil {
			cancel(openErr)
		}
	})
	select {
	case <-g.secretPathReused:
		cancel(errUsedTwice)
	case <-ctx.Done():
	}
	opening.Wait()
	err = errors.Join(<-served, openErr)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errUsedTwice):
		err = errors.Join(err, cause)
	case errors.Is(cause, errIdle):
		fmt.Fprintf(s.Err, "==> no request for %s, the page is no longer served\n", sessionIdleTime)
	}
	return err
}

var (
	errIdle      = errors.New("the session was idle")
	errUsedTwice = errors.New("the session has ended: " + usedTwice)
)

// createLoginSecret requests a one-time secret from the agent. It returns "" if the agent requires no token.
func createLoginSecret(ctx context.Context, c *api.Client) (string, error) {
	var made struct{ Secret string }
	if _, err := c.Raw().Write("/v1/agent/login/secret", nil, &made, apiclient.WriteOptions(ctx, "")); err != nil {
		return "", apiclient.WrapErrorWithAdvice("log the browser in", err)
	}
	return made.Secret, nil
}

// findUIAddress returns the HTTP address of the agent, even if the command connects to the unix socket, which browsers
// do not support. It returns "" if the agent listens only on its unix socket.
func findUIAddress(ctx context.Context, o options, c *api.Client) (string, error) {
	address := o.clientFlags.ClientConfig().Address
	if !strings.HasPrefix(address, "unix:") {
		return strings.TrimSuffix(address, "/"), nil
	}
	id, err := apiclient.LocalNodeID(c)
	if err != nil {
		return "", err
	}
	node, _, err := c.Nodes().Info(id, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return "", apiclient.WrapErrorWithAdvice("ask the agent where it listens", err)
	}
	listens := node.Attributes["unique.advertise.address"] // HTTPAddr is empty in answers over a unix socket
	switch {
	case listens == "":
		return "", nil
	case node.TLSEnabled:
		return "https://" + listens, nil
	}
	return "http://" + listens, nil
}

// uiPathPrefixes maps kinds of objects to the paths of their web pages.
var uiPathPrefixes = map[contexts.Context]string{
	contexts.Jobs:   "jobs/",
	contexts.Allocs: "allocations/",
	contexts.Nodes:  "clients/",
}

// findUIPath returns the path, relative to /ui/, of the page of the only job, allocation or node whose ID starts with
// idPrefix. The path of a job contains its namespace, unless that is the default one.
func findUIPath(ctx context.Context, c *api.Client, namespace, idPrefix string) (string, error) {
	answer, _, err := c.Search().PrefixSearch(idPrefix, contexts.All, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return "", apiclient.WrapErrorWithAdvice(fmt.Sprintf("look for %q", idPrefix), err)
	}
	var matchingPaths []string
	for context, page := range uiPathPrefixes {
		for _, match := range answer.Matches[context] {
			path := page + url.PathEscape(match)
			if context == contexts.Jobs && !slices.Contains([]string{"", "*", api.DefaultNamespace}, namespace) {
				path = cli.JobWebPagePath(match, namespace)
			}
			if match == idPrefix {
				return path, nil
			}
			matchingPaths = append(matchingPaths, path)
		}
	}
	switch len(matchingPaths) {
	case 0:
		//lint:ignore ST1005 the text is Nomad's
		return "", fmt.Errorf("Unable to resolve ID: %q\nNo job, allocation or node has an id with this beginning", idPrefix)
	case 1:
		return matchingPaths[0], nil
	}
	//lint:ignore ST1005 the text is Nomad's
	return "", fmt.Errorf("Multiple matches found for id %q: give more of it", idPrefix)
}
