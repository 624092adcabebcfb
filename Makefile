.PHONY: check generate bench

check: ## what CI runs
	bash .ci/run

generate: ## protobuf code, after a change of a .proto file
	go generate ./...

bench: ## every figure of the design's budgets, beside its floor
	go test -run '^$$' -bench . -benchtime 1x ./...
