#include "cli/command.h"

int main(int argc, char** argv) {
  kvant::cli::Program program;
  kvant::cli::AddBenchCommand(program);
  kvant::cli::AddCalibrateCommand(program);
  kvant::cli::AddDecodeWorkerCommand(program);
  kvant::cli::AddEvalCommand(program);
  kvant::cli::AddGenerateCommand(program);
  kvant::cli::AddInspectCommand(program);
  kvant::cli::AddModelsCommand(program);
  return program.Run(argc, argv);
}
