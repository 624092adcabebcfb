# A small web service with everything around it: built before it starts, asked
# once it runs, and summed up when it has stopped.
#
#   go run ./cmd/nomad-lite run testdata/jobs/web.nomad.hcl

variable "greeting" {
  type        = string
  default     = "hello from nomad-lite"
  description = "What the server answers."
}

locals {
  server = <<-GO
    package main

    import (
    	"fmt"
    	"log"
    	"net/http"
    	"os"
    )

    func main() {
    	log.SetFlags(0)
    	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
    		log.Print(r.Method, " ", r.URL)
    		fmt.Fprintln(w, os.Getenv("GREETING"))
    	})
    	log.Print("listening on http://", os.Getenv("NOMAD_ADDR_http"))
    	log.Fatal(http.ListenAndServe(os.Getenv("NOMAD_ADDR_http"), nil))
    }
  GO

  client = <<-GO
    package main

    import (
    	"fmt"
    	"io"
    	"log"
    	"net/http"
    	"os"
    	"time"
    )

    func main() {
    	for range 100 {
    		answer, err := http.Get("http://" + os.Getenv("NOMAD_ADDR_http"))
    		if err == nil {
    			body, _ := io.ReadAll(answer.Body)
    			fmt.Print(answer.Status, ": ", string(body))
    			return
    		}
    		time.Sleep(100 * time.Millisecond)
    	}
    	log.Fatal("the server does not answer")
    }
  GO
}

job "web" {
  group "web" {
    network {
      port "http" {}
    }

    task "build" {
      lifecycle {
        hook = "prestart"
      }
      driver = "raw_exec"
      config {
        command  = "/bin/sh"
        args     = ["-ec", "printf %s \"$SERVER\" > server.go; printf %s \"$CLIENT\" > client.go; for p in server client; do go build -o $p $p.go; done; echo built: *"]
        work_dir = "${NOMAD_ALLOC_DIR}/data"
      }
      env {
        SERVER = local.server
        CLIENT = local.client
      }
    }

    task "server" {
      driver = "raw_exec"
      config {
        command = "${NOMAD_ALLOC_DIR}/data/server"
      }
      env {
        GREETING = var.greeting
      }
    }

    task "ask" {
      lifecycle {
        hook = "poststart"
      }
      driver = "raw_exec"
      config {
        command = "${NOMAD_ALLOC_DIR}/data/client"
      }
    }

    task "report" {
      lifecycle {
        hook = "poststop"
      }
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo requests answered: $(grep -c ^GET \"$NOMAD_ALLOC_DIR\"/logs/server.stderr.0)"]
      }
    }
  }
}
