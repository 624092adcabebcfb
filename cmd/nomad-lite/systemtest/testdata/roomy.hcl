client {
  gc_disk_usage_threshold  = 100
  gc_inode_usage_threshold = 100

  # Each start of an agent would start a Java virtual machine and QEMU, for their versions.
  # That takes half of the processor time of the start.
  options = {
    "driver.denylist" = "java,qemu"
  }
}
