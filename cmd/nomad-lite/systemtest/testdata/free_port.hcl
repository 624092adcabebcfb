ports {
  http = 0
}
