# Everything runs in .venv, made on first use. `make demo` and `make test` are the two to know.
FOLDERS := schemas agents detectors correlation sinks streams replay cli
PY      := .venv/bin/python
STAMP   := .venv/.installed

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 16

demo: $(STAMP)   ## replay the packaged recording, no Kafka needed
	@.venv/bin/stethoscope demo

test: $(STAMP) system  ## all tests, real Kafka and Alertmanager included
	.venv/bin/pytest

check: $(STAMP) types  ## format, lint, strict types, unit and contract tests
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/pyright
	.venv/bin/pytest -m "not integration and not e2e"
	.venv/bin/pytest --doctest-modules --pyargs stethoscope.schemas stethoscope.detectors stethoscope.sinks

kafka: $(STAMP) system  ## start an Apache Kafka broker on 127.0.0.1:9092
	scripts/kafka-start.sh .kafka 9092 29092  # the port after 9092 is Alertmanager's

kafka-stop:      ## stop that broker
	scripts/kafka-stop.sh .kafka

system:          ## what the tests need of the machine (Java, Maven, Alertmanager)
	@scripts/install-system.sh

install: $(STAMP)  ## the command and the development tools, in .venv

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into .venv: about a minute, once"
	@python3 -m venv .venv
	@.venv/bin/pip install -q -U pip
	@PYTHONWARNINGS=ignore .venv/bin/pip install -q -c constraints.txt -e '.[agent,worker]' --group dev
	@touch $@

types:
	@mkdir -p .typing_root/stethoscope && cd .typing_root/stethoscope && for d in $(FOLDERS); do ln -sfn ../../$$d $$d; done

clean:           ## forget what was built
	rm -rf .venv .typing_root build *.egg-info

.PHONY: help demo test check kafka kafka-stop system install types clean
