package launch

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	coreProtocolVersion = 1
	appProtocolVersion  = 2

	// maxHandshakeSize is the maximum length of the handshake line, the first line of stdout, in bytes.
	maxHandshakeSize = 4096
)

// handshake is the content of a valid handshake line of go-plugin, which a plugin writes to
// its stdout.
type handshake struct {
	network string // "unix" or "tcp"
	addr    string // path of the unix socket, or host:port
}

// formatLine returns the handshake line that go-plugin reads in place of the plugin's own line. It omits the field for a
// certificate: go-plugin 1.8 dereferences nil if a plugin sends a certificate that go-plugin did not request.
func (h handshake) formatLine() string {
	return fmt.Sprintf("%d|%d|%s|%s|grpc|\n", coreProtocolVersion, appProtocolVersion, h.network, h.addr)
}

// parseHandshake parses the first line of a plugin's stdout. The error describes what is wrong
// with the plugin.
func parseHandshake(line string) (handshake, error) {
	line = strings.TrimSpace(line)
	parts := strings.Split(line, "|")
	if len(parts) < 4 {
		return handshake{}, fmt.Errorf("wrote %s on stdout, where only the handshake line may stand; a plugin logs to stderr", quoteTruncated(line))
	}
	core, err := strconv.Atoi(parts[0])
	if err != nil {
		return handshake{}, fmt.Errorf("wrote %s on stdout, where only the handshake line may stand; a plugin logs to stderr", quoteTruncated(line))
	}
	if core != coreProtocolVersion {
		return handshake{}, fmt.Errorf("incompatible core API version with plugin: it speaks version %d of go-plugin's protocol, not %d; build it again with a current go-plugin", core, coreProtocolVersion)
	}
	app, err := strconv.Atoi(parts[1])
	if err != nil {
		return handshake{}, fmt.Errorf("handshake line %s: protocol version %s is no number", quoteTruncated(line), quoteTruncated(parts[1]))
	}
	if app != appProtocolVersion {
		return handshake{}, fmt.Errorf("incompatible API version with plugin: it speaks version %d of Nomad's plugin protocol, not %d", app, appProtocolVersion)
	}
	protocol := "netrpc"
	if len(parts) >= 5 {
		protocol = parts[4]
	}
	if protocol != "grpc" {
		return handshake{}, fmt.Errorf("unsupported plugin protocol %s: only grpc is spoken here", quoteTruncated(protocol))
	}

	h := handshake{network: parts[2], addr: parts[3]}
	switch h.network {
	case "unix":
		if !strings.HasPrefix(h.addr, "/") {
			return handshake{}, fmt.Errorf("handshake line %s: socket %s is not an absolute path", quoteTruncated(line), quoteTruncated(h.addr))
		}
	case "tcp":
		host, _, err := net.SplitHostPort(h.addr)
		if err != nil {
			return handshake{}, fmt.Errorf("handshake line %s: address %s is not host:port", quoteTruncated(line), quoteTruncated(h.addr))
		}
		// only loopback addresses are allowed: the connection is not encrypted, and
		// transfers the secrets of tasks
		if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
			return handshake{}, fmt.Errorf("handshake line %s: the plugin listens on %s, which is not a loopback address", quoteTruncated(line), quoteTruncated(host))
		}
	default:
		return handshake{}, fmt.Errorf("unknown address type %s in handshake line %s", quoteTruncated(h.network), quoteTruncated(line))
	}
	return h, nil
}

// quoteTruncated quotes untrusted text, at most 200 bytes, without control characters.
func quoteTruncated(s string) string {
	const maxQuotedSize = 200
	if len(s) > maxQuotedSize {
		return strconv.Quote(strings.ToValidUTF8(s[:maxQuotedSize], "")) + "…"
	}
	return strconv.Quote(s)
}
