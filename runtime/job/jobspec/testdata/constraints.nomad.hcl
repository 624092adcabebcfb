# each way to write a constraint or an affinity, and scaling without enabled
job "constraints" {
  constraint {
    attribute        = "${attr.cpu.features}"
    set_contains_any = "avx2,avx512"
  }
  constraint {
    attribute        = "${attr.cpu.features}"
    set_contains_all = "sse,avx"
  }
  constraint {
    attribute = "${meta.rack}"
    is_set    = true
  }
  constraint {
    attribute  = "${meta.broken}"
    is_not_set = true
  }
  constraint {
    attribute = "${meta.spare}"
    is_set    = false
  }
  constraint {
    is_set = "${meta.zone}"
  }
  constraint {
    attribute = "${meta.rack}"
    operator  = "is_set"
    value     = null
  }
  affinity {
    attribute = "${meta.rack}"
    value     = "r1"
    weight    = -100
  }

  group "g" {
    scaling {
      max = 3
    }
    task "t" {
      driver = "raw_exec"
      scaling "cpu" {
        max = 300
      }
    }
  }
}
