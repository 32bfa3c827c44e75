#include "cli/model_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

class ModelStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("kvant_model_store_" + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string Touch(const std::string& name) {
    std::ofstream(dir_ / name) << "x";
    return (dir_ / name).string();
  }

  fs::path dir_;
};

TEST_F(ModelStoreTest, TheFolderIsTheFlagThenXdgThenHome) {
  setenv("XDG_DATA_HOME", "/data", 1);
  setenv("HOME", "/users/someone", 1);
  EXPECT_EQ(*ModelsDir("/given"), "/given");
  EXPECT_EQ(*ModelsDir(""), "/data/kvant/models");
  unsetenv("XDG_DATA_HOME");
  EXPECT_EQ(*ModelsDir(""), "/users/someone/.local/share/kvant/models");
  unsetenv("HOME");
  EXPECT_EQ(ModelsDir("").status().code(), StatusCode::kNotFound);
}

TEST_F(ModelStoreTest, AModelIsAPathOrAnInstalledName) {
  const std::string path = Touch("small.gguf");
  EXPECT_EQ(*FindModel(path, "/nowhere"), path);
  EXPECT_EQ(*FindModel("small.gguf", dir_.string()), path);
  EXPECT_EQ(*FindModel("small", dir_.string()), path);
}

TEST_F(ModelStoreTest, WithoutANameItIsTheDefaultModel) {
  const Status missing = FindModel("", dir_.string()).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("scripts/setup.sh"), std::string::npos);
  const std::string path = Touch(kDefaultModel);
  EXPECT_EQ(*FindModel("", dir_.string()), path);
}

TEST_F(ModelStoreTest, AMissingModelIsNamed) {
  const Status missing = FindModel("other/large", dir_.string()).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("other/large"), std::string::npos);
  EXPECT_EQ(FindModel(dir_.string(), dir_.string()).status().code(), StatusCode::kNotFound) << "a folder is no model";
}

TEST_F(ModelStoreTest, InstalledModelsAreSortedGgufFiles) {
  const std::string second = Touch("b.gguf");
  const std::string first = Touch("a.gguf");
  Touch("notes.txt");
  fs::create_directory(dir_ / "folder.gguf");
  EXPECT_EQ(*InstalledModels(dir_.string()), (std::vector<std::string>{first, second}));
  const Status missing = InstalledModels((dir_ / "nothing").string()).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("nothing"), std::string::npos);
  EXPECT_EQ(InstalledModels(second).status().code(), StatusCode::kIoError) << "a file is no folder";
}

}  // namespace
}  // namespace kvant::cli
