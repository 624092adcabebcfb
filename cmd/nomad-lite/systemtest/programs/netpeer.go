package programs

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// runNetworkTestPeer is a server and a client for tests of networks. `net-peer serve PORT NAME`, or with ADDRESS:PORT
// in place of PORT, responds to each line with its name and the address of the client. `net-peer ask ADDRESS` sends a
// line and prints the response.
func runNetworkTestPeer() {
	if err := serveOrAskPeer(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveOrAskPeer(mode string, args []string) error {
	if mode == "ask" {
		c, err := net.DialTimeout("tcp", args[0], 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		fmt.Fprintln(c, "?")
		answer, err := bufio.NewReader(c).ReadString('\n')
		fmt.Print(answer)
		return err
	}
	address := args[0]
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			for lines := bufio.NewScanner(c); lines.Scan(); {
				fmt.Fprintln(c, args[1], host)
			}
		}()
	}
}
