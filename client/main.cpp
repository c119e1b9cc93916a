#include "client/app.hpp"

int main(int argc, char** argv) { return numalease::client::run_client(argc, argv); }
