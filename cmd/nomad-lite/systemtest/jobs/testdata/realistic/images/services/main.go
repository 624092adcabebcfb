// Services is the program of the images of the realistic job files. Its first argument is the
// name of a service: kvstore, webapp, proxy, monitor or game.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	services := map[string]func(){"kvstore": kvstore, "webapp": webapp, "proxy": proxy, "monitor": monitor, "game": game}
	if len(os.Args) < 2 || services[os.Args[1]] == nil {
		log.Fatal("usage: services kvstore|webapp|proxy|monitor|game [flags]")
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	services[name]()
}

// serve answers requests until SIGTERM, and then completes the running requests.
func serve(address string, handler http.Handler) {
	server := &http.Server{Addr: address, Handler: handler}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		<-stop
		log.Print("draining connections")
		if err := server.Shutdown(context.Background()); err != nil {
			log.Print(err)
		}
	}()
	log.Print("listening on ", address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	<-drained
	log.Print("bye")
}

// kvstore stores each key in a file. GET reads it, PUT writes it, POST adds one to it.
func kvstore() {
	listen := flag.String("listen", ":6379", "address")
	dir := flag.String("dir", "/data", "directory of the keys")
	flag.Parse()
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	write := func(path string, value []byte) error {
		if err := os.WriteFile(path+".new", value, 0o644); err != nil {
			return err
		}
		return os.Rename(path+".new", path)
	}
	serve(*listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if password := os.Getenv("KVSTORE_PASSWORD"); password != "" {
			if _, got, _ := r.BasicAuth(); got != password {
				http.Error(w, "wrong password", http.StatusUnauthorized)
				return
			}
		}
		path := filepath.Join(*dir, filepath.Base(r.URL.Path))
		if r.URL.Path == "/" {
			fmt.Fprintln(w, "PONG")
			return
		}
		value, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && r.Method != http.MethodGet {
			err = nil
		}
		switch {
		case err != nil:
		case r.Method == http.MethodPut:
			if value, err = io.ReadAll(r.Body); err == nil {
				err = write(path, value)
			}
		case r.Method == http.MethodPost:
			n, _ := strconv.Atoi(string(value))
			value = []byte(strconv.Itoa(n + 1))
			err = write(path, value)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(value)
	}))
}

// webapp answers with its version and greeting. With a database, it counts visits there, and
// serves the keys of the database below /data.
func webapp() {
	listen := flag.String("listen", ":8080", "address")
	config := flag.String("config", "", "file with the greeting, read again on SIGHUP")
	flag.Parse()
	greeting := os.Getenv("GREETING")
	var mu sync.Mutex
	broken, requests := false, 0
	read := func() {
		if *config == "" {
			return
		}
		text, err := os.ReadFile(*config)
		if err != nil {
			log.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		greeting = strings.TrimSpace(string(text))
		log.Print("configuration: ", greeting)
	}
	read()
	onHangup(read)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests++
		log.Print(r.Method, " ", r.URL)
		fmt.Fprintf(w, "shop %s in %s: %s\n", os.Getenv("APP_VERSION"), os.Getenv("NOMAD_GROUP_NAME")+"/"+os.Getenv("NOMAD_ALLOC_INDEX"), greeting)
		database := os.Getenv("DATABASE_URL")
		if database == "" {
			return
		}
		answer, err := http.Post(database+"/visits", "text/plain", nil)
		if err != nil {
			fmt.Fprintln(w, "database:", err)
			return
		}
		defer answer.Body.Close()
		visits, _ := io.ReadAll(answer.Body)
		fmt.Fprintf(w, "visits %s\n", visits)
	})
	if database, err := url.Parse(os.Getenv("DATABASE_URL")); err == nil && database.Host != "" {
		mux.Handle("/data/", http.StripPrefix("/data", httputil.NewSingleHostReverseProxy(database)))
	}
	mux.HandleFunc("POST /break", func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		broken = true
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if broken {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, "requests_total %d\n", requests)
	})
	serve(*listen, mux)
}

func onHangup(f func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		for range hangup {
			f()
		}
	}()
}

// proxy distributes requests to the backends of its configuration: one address per line.
func proxy() {
	listen := flag.String("listen", ":80", "address")
	config := flag.String("config", "/etc/proxy.conf", "file with the backends, read again on SIGHUP")
	flag.Parse()
	var mu sync.Mutex
	var backends []string
	next := 0
	read := func() {
		text, err := os.ReadFile(*config)
		if err != nil {
			log.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		backends = nil
		for _, line := range strings.Split(string(text), "\n") {
			if server, ok := strings.CutPrefix(strings.TrimSpace(line), "server "); ok {
				backends = append(backends, strings.TrimSuffix(server, ";"))
			}
		}
		log.Printf("%d backends", len(backends))
	}
	read()
	onHangup(read)
	serve(*listen, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		mu.Lock()
		defer mu.Unlock()
		if len(backends) == 0 {
			return // the request fails with 502
		}
		next = (next + 1) % len(backends)
		r.SetURL(&url.URL{Scheme: "http", Host: backends[next]})
	}})
}

// monitor requests each target of its configuration, and reports which of them answer. A line of
// the configuration has a name and a URL.
func monitor() {
	listen := flag.String("listen", ":9090", "address")
	config := flag.String("config", "/etc/targets", "file with the targets, read before each round")
	interval := flag.Duration("interval", 15*time.Second, "time between two rounds")
	flag.Parse()
	var mu sync.Mutex
	report := ""
	go func() {
		for ; ; time.Sleep(*interval) {
			text, err := os.ReadFile(*config)
			if err != nil {
				log.Fatal(err)
			}
			var round strings.Builder
			for _, line := range strings.Split(string(text), "\n") {
				name, target, ok := strings.Cut(strings.TrimSpace(line), " ")
				if !ok || strings.HasPrefix(name, "#") {
					continue
				}
				state := "up"
				if answer, err := http.Get(target); err != nil {
					state = "down"
				} else {
					answer.Body.Close()
				}
				fmt.Fprintln(&round, name, state)
			}
			mu.Lock()
			report = round.String()
			mu.Unlock()
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/healthy", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /targets", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(w, report)
	})
	serve(*listen, mux)
}

// game answers each UDP packet with the packet, its version and the blocks of the world. The packet
// "build NAME" adds a block, once.
func game() {
	listen := flag.String("listen", ":27015", "address")
	dir := flag.String("world", "/world", "directory of the world")
	flag.Parse()
	path := filepath.Join(*dir, "blocks")
	conn, err := net.ListenPacket("udp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		conn.Close()
	}()
	blocks, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Fatal(err)
	}
	packet := make([]byte, 1500)
	for {
		n, player, err := conn.ReadFrom(packet)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		if name, ok := strings.CutPrefix(string(packet[:n]), "build "); ok && !bytes.Contains(blocks, []byte(name)) {
			blocks = append(blocks, " "+name...)
			if err := os.WriteFile(path, blocks, 0o644); err != nil {
				log.Fatal(err)
			}
		}
		if _, err := conn.WriteTo(fmt.Appendf(nil, "%s -> %s:%s", packet[:n], os.Getenv("APP_VERSION"), blocks), player); err != nil {
			log.Print(err) // the player sends again
		}
	}
}
